"""What a film looks like, beside that it is there (tests of recipes)."""

import imageio.v3 as imageio
import numpy as np
import pytest

import rlinf_lab.experiments.film as film_module
from envs.gymnasium import classic_control
from rlinf_lab.errors import ConfigError
from rlinf_lab.experiments.film import Film, alike, film, for_video
from rlinf_lab.recipes.ppo import PPOConfig


@pytest.mark.parametrize("size", [(1, 1), (36, 36), (64, 50), (203, 300), (480, 640)])
def test_small_pictures_are_enlarged_and_a_video_takes_every_size(tmp_path, caplog, size):
    pictures = np.random.default_rng(0).integers(0, 256, (3, *size, 3), dtype=np.uint8)
    film = for_video(pictures)
    factor = 1 if size[0] == 480 else -(-240 // min(size))
    assert np.array_equal(film[:, : size[0] * factor : factor, : size[1] * factor : factor], pictures)
    imageio.imwrite(tmp_path / "film.mp4", film, fps=25, macro_block_size=8)
    assert imageio.imread(tmp_path / "film.mp4").shape[1:] == film.shape[1:] and min(film.shape[1:3]) >= 240
    assert not caplog.records


def test_a_film_plays_in_a_notebook_as_long_as_its_file_is_there(tmp_path):
    film = Film("<b>.mp4: 2 episodes")
    assert film._repr_html_() is None and film == "<b>.mp4: 2 episodes"
    film.path = tmp_path / "b.mp4"
    assert film._repr_html_() is None
    film.path.write_bytes(b"film")
    assert "data:video/mp4;base64,ZmlsbQ==" in film._repr_html_() and "&lt;b&gt;.mp4: 2 episodes" in film._repr_html_()


def test_grey_transparent_fractional_and_growing_pictures_are_a_film():
    red = np.zeros((4, 6, 4), np.uint8)
    red[..., 0], red[..., 3] = 255, 9
    frames = [np.full((4, 6), 7, np.uint8), np.full((2, 3, 1), 8, np.uint8), red]
    made = alike(frames)
    assert made.shape == (3, 4, 6, 3) and (made[0] == 7).all() and (made[1, :2, :3] == 8).all() and not made[1, 2:].any() and not made[1, :, 3:].any()
    assert (made[2] == [255, 0, 0]).all()
    assert alike([np.array([[0.0, 1.0]])])[0, 0].tolist() == [[0] * 3, [255] * 3]
    assert alike([np.array([[-3.0, 254.0]])])[0, 0].tolist() == [[0] * 3, [254] * 3]


@pytest.mark.parametrize(("name", "episodes", "said"), [("a", 1, r"\.mp4 or \.gif\. Next: film.*a\.mp4"), ("a.png", 1, "Next: film"), ("a.mp4", 0, "at least 1"), ("a.mp4", 1.5, "at least 1")])
def test_what_is_no_film_is_refused_before_anything_is_played(tmp_path, name, episodes, said):
    with pytest.raises(ConfigError, match=said):
        film(None, None, tmp_path / name, episodes)


def test_a_film_without_pygame_says_what_to_install(tmp_path, monkeypatch):
    for module in (classic_control, film_module):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    made = film(PPOConfig("CartPole-v1", runner="numpy"), None, tmp_path / "a.mp4")
    assert made.endswith('Next: pip install "gymnasium[classic-control]"') and made.path is None
    monkeypatch.setattr(film_module, "find_spec", lambda name: "here")
    assert "rlinf-lab doctor" in film(PPOConfig("CartPole-v1", runner="numpy"), None, tmp_path / "a.mp4")
