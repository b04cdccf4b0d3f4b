"""What a film looks like, beside that it is there (tests of recipes)."""

import imageio.v3 as imageio
import numpy as np
import pytest

from rlinf_lab.recipes.film import Film, for_video


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
