"""A device host as a Ray actor."""

from __future__ import annotations

import os

from rlinf_lab.runtime.executors.device_host import DeviceHost, gpus_of


class RayHost(DeviceHost):
    """Lives in an actor's process."""

    def _ip(self) -> str:
        import ray

        return str(ray.util.get_node_ip_address())

    def _ray_node(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def _see_gpus(self) -> dict[str, str]:
        """Make the GPUs that Ray gave to this process the only visible ones.

        Ray has set CUDA_VISIBLE_DEVICES already, unless the user told it not to
        (RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES).
        """
        import ray

        if gpus_of(self._device_names()):
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(
                sorted(ray.get_runtime_context().get_accelerator_ids()["GPU"])
            )
        return super()._see_gpus()
