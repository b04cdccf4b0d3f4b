"""The still picture of a widget as an output of its own, just above the widget's.

JupyterLab and Notebook show the widget of an output whenever it names one. Where its kernel has gone (a notebook that is opened again) that is "Error
displaying widget: model not found", though the same output has a picture. So the picture comes first, by itself; it hides while the widget below it is
seen, and hides what is said there when no widget can be.
"""

from __future__ import annotations

import os
import sys
from types import FrameType

from rlinf_lab.widgets.fallback import Still

_MARK = "rlinf-lab-still"
#: Between two outputs that follow each other on a page of Jupyter's. Roots of our widgets are called rl-…; a message that there is none has only text.
_STYLE = (
    f"<style>.jp-OutputArea-child:has(.{_MARK}):has(+ .jp-OutputArea-child > .jp-OutputArea-output > .lm-Widget > [class^=rl-]),"
    f".jp-OutputArea-child:has(.{_MARK}) + .jp-OutputArea-child > .jupyter-widgets:not(:has(*))"
    "{display:none}</style>"
)


def is_possible() -> bool:
    """In a kernel whose page is Jupyter's own, as far as that can be known: others would show both."""
    if "ipykernel" not in sys.modules or "VSCODE_PID" in os.environ or "VSCODE_CWD" in os.environ or "google.colab" in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def is_update() -> bool:
    """Whether what asks for a picture now makes an output anew that is there, as ``display_handle.update(view)`` does: IPython tells no repr of it."""
    from IPython.core.display_functions import display

    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is display.__code__:
            return bool(frame.f_locals.get("kwargs", {}).get("update"))
        frame = frame.f_back
    return False


def show(still: Still, name: str, again: bool = False) -> None:
    """In a new output, and in all those of this ``name`` that are there; ``again``: in these only."""
    from IPython.display import display

    display(Still(f'{_STYLE}<div class="{_MARK}">{still.html}</div>', still.text, lambda: still.scene), display_id=name, update=again)
