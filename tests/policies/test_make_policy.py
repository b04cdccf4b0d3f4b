"""Policies for every space: acting against learning, numpy against torch, seeds, statistics, copies, export, what is
refused.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from torch import nn

from rlinf_lab.errors import ConfigError, RlinfLabError
from rlinf_lab.policies import encoders, make_policy
from rlinf_lab.policies.encoders import in_blocks
from rlinf_lab.policies.leaves import flatten, leaves_of

BOX, ARM = spaces.Box(-np.inf, np.inf, (5,)), spaces.Box(-1, 1, (3,))
EVERYTHING = spaces.Dict(
    {
        "state": spaces.Box(-9, 9, (2, 3)),
        "goal": spaces.Tuple(
            [spaces.Discrete(4, start=-1), spaces.MultiDiscrete([[2, 3], [2, 2]]), spaces.MultiBinary([2, 2])]
        ),
        "ticks": spaces.Box(0, 255, (4,), dtype=np.uint8),
    }
)
CAMERAS = spaces.Dict(
    {
        "rgb": spaces.Box(0, 255, (36, 40, 3), np.uint8),
        "depth": spaces.Box(0.5, 4.5, (1, 12, 10)),
        "grey": spaces.Box(0, 255, (9, 9), np.uint8),
        "state": BOX,
    }
)
MIXED = spaces.Dict(
    {
        "arm": ARM,
        "grip": spaces.Discrete(2),
        "rest": spaces.Tuple([spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(2)]),
    }
)
OBSERVATIONS = {"box": BOX, "discrete": spaces.Discrete(6), "everything": EVERYTHING, "cameras": CAMERAS}
ACTIONS = {"arm": ARM, "grid": spaces.Box(-2, 2, (2, 2)), "discrete": spaces.Discrete(5, start=1), "mixed": MIXED}


def sampled(space, n, seed=0):
    """``n`` observations as a tree of arrays, batched by gymnasium itself."""
    space.seed(seed)
    return concatenate(space, [space.sample() for _ in range(n)], create_empty_array(space, n))


def alive(policy):
    """As after training: not all means about 0, statistics that are no identity."""
    with torch.no_grad():
        policy.policy[-1].weight.mul_(60)
    rng, size = np.random.default_rng(5), policy.normalised_size
    policy.set_normaliser(rng.normal(size=size), np.exp(rng.normal(size=size)))
    return policy


def by_torch(policy, obs):
    """Parameters of the head, the way that learning takes."""
    with torch.no_grad():
        return policy.policy(policy.encoder(policy.preprocess(policy._tensors(policy.preprocess.space, obs)))).numpy()


@pytest.mark.parametrize(("sizes", "seed"), [((5, 3), 0), ((39, 4), 7)])
def test_the_usual_policy_is_the_plain_formula_bit_for_bit(sizes, seed):
    """Orthogonal weights, policy first; normalise, two tanh layers, mean plus noise: runs of before keep their curves."""
    policy = make_policy(
        spaces.Box(-np.inf, np.inf, sizes[:1]), spaces.Box(-1, 1, sizes[1:]), log_std_init=-0.7, seed=seed
    )
    generator, layers = torch.Generator().manual_seed(seed), []
    for net, gain in ((policy.policy, 0.01), (policy.critic, 1.0)):
        for i in (0, 2, 4):
            weight = torch.empty_like(net[i].weight)
            layers.append(nn.init.orthogonal_(weight, gain if i == 4 else 2**0.5, generator=generator).numpy().T)
            np.testing.assert_array_equal(net[i].weight.detach().numpy().T, layers[-1])
            assert (net[i].bias == 0).all()
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(9, sizes[0])).astype(np.float32)
    mean, std = rng.normal(size=sizes[0]).astype(np.float32), rng.random(sizes[0]).astype(np.float32)
    policy.set_normaliser(mean, std)
    noise = policy.draw_noise(np.random.default_rng(2), 9)
    np.testing.assert_array_equal(noise, np.random.default_rng(2).standard_normal((9, sizes[1]), dtype=np.float32))
    x = np.clip((obs - mean) / std, -10, 10)
    greedy = np.tanh(np.tanh(x @ layers[0]) @ layers[1]) @ layers[2]
    log_std = np.full(sizes[1], -0.7, np.float32)
    action, log_prob = policy.act(obs, noise)
    np.testing.assert_array_equal(policy.act(obs, None)[0], greedy)
    np.testing.assert_array_equal(action, greedy + np.exp(log_std) * noise)
    normal = torch.distributions.Normal(torch.from_numpy(greedy), torch.from_numpy(log_std).exp())
    np.testing.assert_allclose(log_prob, normal.log_prob(torch.from_numpy(action)).sum(1), atol=1e-5)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_acting_and_learning_agree_on_every_space(observation, action):
    obs_space, action_space = OBSERVATIONS[observation], ACTIONS[action]
    policy = alive(make_policy(obs_space, action_space, net_arch=(32,), activation="elu"))
    obs, n = sampled(obs_space, 7), 7
    if policy._numpy_actor is not None:
        np.testing.assert_allclose(
            policy._numpy_actor(policy.preprocess.numpy(obs)), by_torch(policy, obs), atol=1e-6, rtol=1e-6
        )
    for noise in (policy.draw_noise(np.random.default_rng(3), n), None):
        chosen, log_prob = policy.act(obs, noise)
        learned, entropy, value = policy.evaluate_actions(obs, chosen)
        np.testing.assert_allclose(log_prob, learned.detach(), atol=2e-5, rtol=1e-5)
    np.testing.assert_allclose(policy.values(obs), value.detach(), atol=1e-5, rtol=1e-5)
    assert log_prob.dtype == policy.values(
        obs
    ).dtype == np.float32 and entropy.shape == value.shape == log_prob.shape == (n,)
    for mine, theirs in zip(
        flatten(action_space, chosen), flatten(action_space, batch_space(action_space, n).sample()), strict=True
    ):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
    (learned + entropy + value).sum().backward()
    assert all(p.grad is not None for p in policy.parameters())  # else DistributedDataParallel would wait for them


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
def test_numpy_and_torch_give_the_same_numbers(activation):
    policy = alive(make_policy(BOX, ARM, activation=activation, squash=True))
    obs = sampled(BOX, 16) * 5
    greedy, _ = policy.act(obs, None)
    np.testing.assert_allclose(greedy, np.tanh(by_torch(policy, obs)), atol=1e-6, rtol=1e-6)


def test_a_row_does_not_depend_on_the_rows_beside_it():
    policy = alive(make_policy(EVERYTHING, MIXED))
    obs, noise = sampled(EVERYTHING, 6), policy.draw_noise(np.random.default_rng(0), 6)
    whole, log_prob = policy.act(obs, noise)
    one, alone = policy.act(_rows(obs, slice(3, 4)), noise[3:4])
    for a, b in zip(flatten(MIXED, whole), flatten(MIXED, one), strict=True):
        np.testing.assert_allclose(a[3:4], b, atol=1e-6)
    np.testing.assert_allclose(log_prob[3:4], alone, atol=1e-5)


def _rows(tree, rows):
    if isinstance(tree, dict):
        return {key: _rows(part, rows) for key, part in tree.items()}
    return tuple(_rows(part, rows) for part in tree) if isinstance(tree, tuple) else tree[rows]


# --- what an encoder reads ------------------------------------------------------------------------------
class Seen(nn.Module):
    """An encoder of the user's own, which keeps what it was given."""

    features_dim = 5

    def __init__(self, space):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, obs):
        self.last = obs
        return self.layer(obs["state"])


def test_images_are_scaled_with_channels_first_and_numbers_normalised():
    policy = make_policy(CAMERAS, ARM, encoder=Seen, share_encoder=True)
    obs = sampled(CAMERAS, 3)
    images = dict.fromkeys(("rgb", "depth", "grey"))
    policy.set_normaliser({"state": np.arange(5), **images}, {"state": np.array([1, 2, 0, 4, 1e-9]), **images})
    obs["state"][0, 0] = 1e9
    policy.evaluate_actions(obs, policy.act(obs, None)[0])
    seen = policy.encoder.last
    np.testing.assert_allclose(seen["rgb"], obs["rgb"].transpose(0, 3, 1, 2) / 255, atol=1e-6)
    np.testing.assert_allclose(seen["depth"], (obs["depth"] - 0.5) / 4, atol=1e-6)
    np.testing.assert_allclose(seen["grey"], obs["grey"][:, None] / 255, atol=1e-6)
    expected = (obs["state"] - np.arange(5)) / np.array([1, 2, 1, 4, 1])
    np.testing.assert_allclose(seen["state"], np.clip(expected, -10, 10), rtol=1e-5, atol=1e-6)
    assert policy.shares_encoder and not hasattr(policy, "value_encoder")


@pytest.mark.parametrize(("channels", "height", "width", "kernel"), [(1, 64, 64, 8), (3, 70, 67, 8), (4, 36, 41, 4)])
def test_a_convolution_by_blocks_of_pixels_is_the_convolution(channels, height, width, kernel):
    """Values, and the gradients of its parameters; sides that the stride does not divide, too."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64) - 0.5  # noqa: E731
    x, weight, bias = draw(2, channels, height, width), draw(5, channels, kernel, kernel), draw(5)
    found = []
    for convolve in (in_blocks, nn.functional.conv2d):
        parameters = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        y = convolve(x, *parameters, 4)
        found.append([y, *torch.autograd.grad(y.square().sum(), parameters)])
    for blocks, plain in zip(*found, strict=True):
        torch.testing.assert_close(blocks, plain)


@pytest.mark.parametrize(("channels", "pixels"), [(1, 85), (1, 90), (3, 90), (3, 84)])
def test_pictures_of_any_width_go_by_blocks_in_half_precision(channels, pixels):
    generator = torch.Generator().manual_seed(0)
    x_NHWC = torch.rand(2, pixels, pixels, channels, generator=generator).bfloat16()
    weight = (torch.rand(5, channels, 8, 8, generator=generator) - 0.5).bfloat16()
    x = x_NHWC.permute(0, 3, 1, 2)  # as pictures are prepared
    torch.testing.assert_close(in_blocks(x, weight, None, 4), nn.functional.conv2d(x, weight, None, 4), rtol=0.02, atol=0.05)


def test_the_first_convolution_goes_by_blocks_in_half_precision_only(monkeypatch):
    """Near the convolution in half precision; not under gradients of the picture, nor in single precision."""
    asked = []
    monkeypatch.setattr(encoders, "in_blocks", lambda *args: asked.append(1) or in_blocks(*args))
    leaf = leaves_of(spaces.Box(0, 255, (64, 64, 1), np.uint8))[0]
    net = encoders.image_net(leaf, 16, torch.Generator().manual_seed(0))
    x = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(1))
    whole = net(x)
    assert not asked
    with torch.autocast("cpu", torch.bfloat16):
        half = net(x)
        assert len(asked) == 1
        net(x.clone().requires_grad_())
    assert len(asked) == 1 and torch.allclose(whole, half.float(), atol=0.03 * float(whole.detach().abs().max()))


def test_flat_leaves_stand_in_one_row_categories_one_hot():
    policy = make_policy(EVERYTHING, ARM)
    obs = sampled(EVERYTHING, 4)
    row = policy.preprocess.numpy(obs)
    first, many, bits = obs["goal"]
    one_hot = [np.eye(4)[first + 1]] + [np.eye(n)[many.reshape(4, -1)[:, i]] for i, n in enumerate((2, 3, 2, 2))]
    expected = np.concatenate(
        [*one_hot, bits.reshape(4, -1), np.clip(obs["state"].reshape(4, -1), -10, 10), np.clip(obs["ticks"], -10, 10)],
        1,
    )
    np.testing.assert_allclose(row, expected, atol=1e-6)
    np.testing.assert_array_equal(policy.numbers(obs), np.concatenate([obs["state"].reshape(4, -1), obs["ticks"]], 1))
    unchanged = make_policy(EVERYTHING, ARM, normalize_obs=False)
    assert unchanged.normalised_size == 0
    np.testing.assert_array_equal(unchanged.preprocess.numpy(obs)[:, -4:], obs["ticks"])


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Box(0, 255, (64, 48, 3), np.uint8), "image, channels last"),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), "image, channels first"),
        (spaces.Box(0, 1, (8, 8, 8)), "image, channels last"),
        (spaces.Box(0, 255, (5, 5, 3), np.uint8), "numbers"),
        (spaces.Box(-np.inf, np.inf, (3, 64, 64)), "numbers"),
        (spaces.Box(0, 255, (128,), np.uint8), "numbers"),
    ],
)
def test_it_is_said_what_is_taken_for_an_image(space, said):
    (leaf,) = leaves_of(space)
    assert said in str(leaf) and said in repr(make_policy(space, ARM, net_arch=()))


def test_whole_trajectories_are_valued_at_once():
    policy = alive(make_policy(EVERYTHING, ARM))
    obs = sampled(EVERYTHING, 6)
    folded = torch.utils._pytree.tree_map(lambda x: x.reshape(2, 3, *x.shape[1:]), obs)
    np.testing.assert_allclose(policy.values(folded).reshape(-1), policy.values(obs), atol=1e-6)
    assert policy.values(_rows(obs, slice(0))).shape == (0,) and policy.numbers(folded).shape == (2, 3, 10)


# --- seeds, weights, copies -----------------------------------------------------------------------------
@pytest.mark.parametrize("encoder", [None, Seen])
def test_construction_depends_on_the_seed_only(encoder):
    torch.manual_seed(1)
    a = make_policy(CAMERAS, MIXED, encoder=encoder, seed=7).weights().arrays
    state = torch.get_rng_state()
    b = make_policy(CAMERAS, MIXED, encoder=encoder, seed=7).weights().arrays
    assert torch.equal(state, torch.get_rng_state())
    assert all((a[k] == b[k]).all() for k in a)
    c = make_policy(CAMERAS, MIXED, encoder=encoder, seed=8).weights().arrays
    assert all((c[k] != a[k]).any() for k in a if k.endswith("weight"))
    assert any((a[k] != a["value_" + k]).any() for k in a if k.startswith("encoder"))


def same(policy):
    """Numpy's path reads what torch's path reads."""
    obs = sampled(EVERYTHING, 4)
    np.testing.assert_allclose(
        policy._numpy_actor(policy.preprocess.numpy(obs)), by_torch(policy, obs), atol=1e-5, rtol=1e-5
    )
    chosen, log_prob = policy.act(obs, policy.draw_noise(np.random.default_rng(0), 4))
    np.testing.assert_allclose(log_prob, policy.evaluate_actions(obs, chosen)[0].detach(), atol=1e-4)
    return chosen["arm"]


def test_acting_sees_new_weights_after_a_step_a_move_a_copy_and_a_load():
    policy, other = alive(make_policy(EVERYTHING, MIXED)), alive(make_policy(EVERYTHING, MIXED, seed=1))
    before = same(policy)
    twin, pickled = copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    obs = sampled(EVERYTHING, 4)
    policy.evaluate_actions(obs, policy.act(obs, None)[0])[0].sum().backward()
    optimizer.step()
    assert (same(policy) != before).any()
    for kept in (twin, pickled):
        np.testing.assert_array_equal(same(kept), before)
        with torch.no_grad():
            kept.head.heads[0].log_std.add_(1.0)
            kept.preprocess.obs_mean.add_(1.0)
        assert (same(kept) != before).any()
    policy._apply(lambda tensor: tensor.clone())  # other memory, as after .to(device)
    for parameter in policy.parameters():
        parameter.data = parameter.data + 0.1
    assert (same(policy) != same(other)).any()
    policy.load(other.weights())
    np.testing.assert_array_equal(same(policy), same(other))


# --- several ranks ------------------------------------------------------------------------------------------
def test_gradients_pass_a_wrapper_of_the_module(tmp_path):
    """DistributedDataParallel and fully_shard stand on the call of the module: gradients of the bare one."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    obs = sampled(EVERYTHING, 4)
    made = [alive(make_policy(EVERYTHING, MIXED)) for _ in range(3)]
    trees = made[0]._tensors(EVERYTHING, obs), made[0]._tensors(MIXED, made[0].act(obs, None)[0])
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        called = [
            made[0],
            DistributedDataParallel(made[1]),
            fully_shard(made[2], mesh=dist.init_device_mesh("cpu", (1,))),
        ]
        for model in called:
            sum(part.sum() for part in model(*trees)).backward()
        bare, *others = [
            [g.full_tensor() if hasattr(g := p.grad, "full_tensor") else g for p in policy.parameters()]
            for policy in made
        ]
        for gradients in others:
            torch.testing.assert_close(gradients, bare)
    finally:
        dist.destroy_process_group()


# --- deployment ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("observation", "action", "squash"), [("cameras", "mixed", True), ("everything", "grid", False)]
)
def test_an_exported_policy_gives_the_greedy_action_of_any_batch(observation, action, squash):
    policy = alive(make_policy(OBSERVATIONS[observation], ACTIONS[action], squash=squash, net_arch=(16,)))
    obs, space = sampled(OBSERVATIONS[observation], 5), ACTIONS[action]
    expected, _ = policy.act(obs, None)
    deployed = policy.as_deployable()
    tensors = policy._tensors(policy.preprocess.space, obs)
    batch = torch.export.Dim("batch", min=1, max=64)
    dynamic = torch.utils._pytree.tree_map(lambda _: {0: batch}, tensors)
    exported = torch.export.export(deployed, (_first(tensors, 3),), dynamic_shapes=(dynamic,)).module()
    with torch.no_grad():
        policy.policy[-1].weight.add_(1)  # training goes on
    for mine in (deployed(tensors), exported(tensors)):
        for a, b in zip(flatten(space, mine), flatten(space, expected), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


def _first(tree, n):
    return torch.utils._pytree.tree_map(lambda t: t[:n], tree)


@pytest.mark.long
def test_onnx_runs_the_policy(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    policy = alive(make_policy(CAMERAS, ARM, squash=True, net_arch=(16,)))
    obs = sampled(CAMERAS, 3)
    expected, _ = policy.act(obs, None)
    tensors = policy._tensors(CAMERAS, obs)
    dynamic = {key: {0: torch.export.Dim.DYNAMIC} for key in tensors}
    torch.onnx.export(
        policy.as_deployable(),
        (),
        tmp_path / "policy.onnx",
        kwargs={"obs": _first(tensors, 2)},
        dynamo=True,
        dynamic_shapes={"obs": dynamic},
        verbose=False,
    )
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    names = [i.name for i in session.get_inputs()]
    (action,) = session.run(None, dict(zip(names, obs.values(), strict=True)))
    np.testing.assert_allclose(action, expected, atol=1e-5, rtol=1e-5)


# --- what is refused --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("named", "said"),
    [
        (
            {"observation_space": spaces.Dict(a=spaces.Tuple([spaces.Text(3)]))},
            r"observation_space\['a'\]\[0\] is Text.*FilterObservation",
        ),
        ({"observation_space": (5,)}, "not a gymnasium space"),
        ({"observation_space": spaces.Box(0, 1, (0, 3))}, "nothing is in it"),
        ({"action_space": spaces.Text(3)}, "action_space is Text"),
        ({"net_arch": 64}, r"net_arch=64.*\(64, 64\)"),
        ({"activation": "tanhh"}, "Did you mean 'tanh'"),
        ({"log_std_init": float("nan")}, "log_std_init=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"encoder": nn.Linear(5, 5)}, "encoder=lambda observation_space"),
        ({"encoder": lambda space: nn.Linear(5, 5)}, "self.features_dim"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(named, said):
    given = {"observation_space": BOX, "action_space": ARM, **named}
    with pytest.raises(RlinfLabError, match=said) as caught:
        make_policy(**given)
    assert isinstance(caught.value, (ConfigError, LookupError))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda obs: {**obs, "state": obs["state"][:, :1]},
            r"observation\['state'\] has the shape \(4, 1, 3\).*\('B', 2, 3\)",
        ),
        (lambda obs: {"state": obs["state"]}, "dict with the keys"),
        (
            lambda obs: {**obs, "goal": (obs["goal"][0] + 4, *obs["goal"][1:])},
            r"observation\['goal'\]\[0\].*not all of it is in Discrete",
        ),
        (lambda obs: {**obs, "goal": obs["goal"][:2]}, r"observation\['goal'\] must be a tuple of 3"),
    ],
)
def test_an_observation_that_does_not_fit_is_named(change, said):
    policy = make_policy(EVERYTHING, ARM)
    with pytest.raises(ValueError, match=said):
        policy.act(change(sampled(EVERYTHING, 4)), None)


def test_noise_and_statistics_that_do_not_fit_are_named():
    policy = make_policy(BOX, ARM)
    with pytest.raises(ValueError, match=r"draw_noise\(rng, 2\)"):
        policy.act(np.zeros((2, 5)), np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"of 4 numbers.*each of the 5"):
        policy.set_normaliser(np.zeros(4), np.ones(4))
    with pytest.raises(ValueError, match="not finite"):
        policy.set_normaliser(np.full(5, np.nan), np.ones(5))
