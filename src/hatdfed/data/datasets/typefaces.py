"""Typefaces: digits and capital letters in twenty typefaces that look like handwriting, drawn from Debian's fonts.

All fonts are free. Most have the SIL Open Font License; fonts-femkeklaver has CC-BY-SA-3.0, fonts-rufscript and
fonts-sjfonts have the GPL with an exception for documents, fonts-dkg-handwriting is built from a source under the Open
Font License by a package under GPL-3+.

A sample is one character, turned, slanted, scaled and shifted a little at random; its class is the character, its group
the typeface. The random numbers depend on typeface and character alone. The images are drawn once and kept in the cache
folder. Another version of Pillow may draw slightly different pixels.
"""

from __future__ import annotations

import hashlib
import math
import string
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import CLASSIFICATION, TaskKind
from hatdfed.data.datasets.base import Dataset, DatasetKind, Examples, Progress, make_dataset
from hatdfed.data.datasets.files import cache_folder, explain_write_errors, move_into_place
from hatdfed.data.datasets.packages import PackageFiles, compute_sha256, describe_place, require_package_files
from hatdfed.errors import ConfigError, DataError, MissingDependencyError
from hatdfed.randomness import stream

if TYPE_CHECKING:
    from PIL import Image, ImageFont

FONTS = Path("/usr/share/fonts")
FILES = PackageFiles(
    title="typefaces (twenty fonts of Debian 12)",
    install=(
        "apt-get install fonts-breip fonts-bwht fonts-comic-neue fonts-dancingscript fonts-dkg-handwriting "
        "fonts-ecolier-court fonts-femkeklaver fonts-havana fonts-humor-sans fonts-kaushanscript fonts-kristi "
        "fonts-leckerli-one fonts-rufscript fonts-sjfonts"
    ),
    sha256={
        "BecauseWeBuild-Regular.otf": "202160d49b0cfbe8a812c5a75487058f7caba2398324214a1e6d34f24b68d855",
        "BecauseWeConnect-Regular.otf": "c9c7135605a5c8cd143b611881c93383c6804166c4770810ab0c07dbbff3aac9",
        "BecauseWeCreate-Regular.otf": "abdbea89b7de43bccae63975af1714a26a473584341d5c395fca1cb1c51ff48f",
        "BecauseWeLearn-Regular.otf": "d5551a6a1449de4ee2e8ddcd0bcc3e7d292d24c61fc6515d8db9b03a65b127dd",
        "BecauseWeMentor-Regular.otf": "b71888fd9a79936e44a55baf1bf0bb4e594827be890882c4fc9918409e8c2509",
        "BecauseWeOrganize-Regular.otf": "f97f8557caa4de42f743d8d4ea0851993b12c112e8713fd6d6d08881e6a24c5e",
        "Breip.ttf": "cded2aeeeb7d35baa8aa5b57df35a25836910498271d3d2eec502f6aa7033eb7",
        "ComicNeue-Regular.otf": "2728ee8f303e31934e62bf27b044fd7657b0613412d51f7444db1078cc3a7cb2",
        "DancingScript-Regular.otf": "38178945aaefdea573f4998d8b984985aaebb95964da337b23e77e682d7d3d17",
        "Delphine.ttf": "afeea795e392f6b8e0cc4ba3978375908d1f29f8d82f1b7b15d9fdc755a05288",
        "Ecolier-court.ttf": "bdbbded05cbb318d470d36475aefe2435847e025a2c7cd3610f8f13bf8e2a829",
        "Havana-Regular.otf": "f0f4e84f9903c32706691df31e422e0ab919eb9569702100dfc1dff7ca184562",
        "Humor-Sans.ttf": "2ded6a27448c9ed30aaff177744e2bcf1e52e0aab018b2a8be64565df633318f",
        "KaushanScript-Regular.otf": "c007ebe4c813374ed02da003394b73b39fa709ff5891c5613733c96be595ba28",
        "Kristi.ttf": "6c14164cd50b52d03d88728971285fe1dbf0d6ee8af6d29274b5d5026a0fb622",
        "LeckerliOne-Regular.ttf": "3f38ed99a07ab426eaa64c7d5773850a5dc8e6719b03125efce2cfbc82b083d7",
        "Rufscript010.ttf": "99b16515f19ab35d18049235797b0dbe3ec73535d455994442b206c96405050f",
        "SteveHand.ttf": "51e0820b832b2cd3db9dc9a759520c868166ae291f19afc3d94689e668d0435e",
        "dkg.ttf": "93eb07f57b84f04fa975ebf49ecec43d9b2c85834a9b63864072c6b993efd131",
        "femkeklaver.ttf": "db4020ede05b31104fb017a2f081c700022b13f4b07811d07c7e088fdbcc4012",
    },
    folders=lambda: sorted(path for path in FONTS.glob("*type/*") if path.is_dir()),
)
CHARACTERS = string.digits + string.ascii_uppercase
SUFFIXES = (".otf", ".ttf")
LEAST_SIDE, MOST_SIDE = 8, 128
ENLARGED = 4  # a character is drawn this many times as large and then reduced, which gives smooth edges
BOX_SHARE = 20 / 28  # the longer side of an upright character as a share of the image's, as in MNIST
DRAWINGS, VALIDATION_DRAWINGS, TEST_DRAWINGS = 40, 6, 6  # of each character in each typeface
MOST_DEGREES, MOST_SLANT, MOST_SHIFT = 12.0, 0.2, 2 / 28  # the last one as a share of the image's side
SMALLEST, LARGEST = 0.8, 1.1
_DRAWN_AS = 1  # to be raised when the code below draws other pixels


def load(
    data_dir: Path | None = None, progress: Progress | None = None, *, side: int = 28, fonts: str | None = None
) -> Dataset:
    """Load the images: of forty drawings of each character, 28 are for training, 6 for validation, 6 for testing.

    Images have `side` × `side` pixels. With `fonts`, the typefaces are all .otf and .ttf files in this folder instead.
    """
    if not isinstance(side, int) or isinstance(side, bool) or not LEAST_SIDE <= side <= MOST_SIDE:
        raise ConfigError(f"typefaces: side is {side!r}. Use a whole number from {LEAST_SIDE} to {MOST_SIDE}.")
    faces = require_package_files(FILES, data_dir) if fonts is None else find_faces(Path(fonts))
    pixels = draw_once(faces, side, cache_folder() / "typefaces")  # [faces, characters, drawings, H, W]
    train, validation, test = np.split(pixels, [-VALIDATION_DRAWINGS - TEST_DRAWINGS, -TEST_DRAWINGS], axis=2)
    return make_dataset(
        "typefaces",
        train=_make_examples(train),
        validation=_make_examples(validation),
        test=_make_examples(test),
        task=TaskKind(CLASSIFICATION, len(CHARACTERS)),
        groups=np.repeat(np.arange(len(faces), dtype=np.int64), math.prod(train.shape[1:3])),
    )


def locate(data_dir: Path | None = None) -> str | None:
    """Return the folder that the fonts would be read from now, or None."""
    return describe_place(FILES, data_dir)


def find_faces(folder: Path) -> Mapping[str, Path]:
    """Find each font in a folder by its name."""
    try:
        found = {path.name: path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES}
    except OSError as error:
        raise DataError(f"The folder of fonts {folder} cannot be read ({error.strerror}). Check its path.") from error
    if not found:
        raise ConfigError(f"The folder {folder} holds no fonts. Files ending in {' or '.join(SUFFIXES)} were wanted.")
    return found


def draw_once(faces: Mapping[str, Path], side: int, cache: Path) -> NDArray[np.uint8]:
    """Draw all characters in all faces, or read what was drawn before from the same fonts."""
    checksums = "".join(f"{name}:{compute_sha256(path)}\n" for name, path in faces.items())
    key = hashlib.sha256(f"{_DRAWN_AS}\n{side}\n{CHARACTERS}\n{checksums}".encode()).hexdigest()[:16]
    path = cache / f"{key}.npy"
    if (known := _read_drawn(path)) is not None:
        return known
    pixels = np.stack([draw_face(name, face, side) for name, face in faces.items()])
    with explain_write_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f"{key}.part.npy"
        np.save(part, pixels)
        move_into_place(part, path)
    return pixels


def _read_drawn(path: Path) -> NDArray[np.uint8] | None:
    """What was drawn before; None if there is nothing, or the file was cut short."""
    try:
        drawn: NDArray[np.uint8] = np.load(path)
    except (OSError, ValueError, EOFError):
        return None
    return drawn


def draw_face(name: str, path: Path, side: int) -> NDArray[np.uint8]:  # -> [characters, DRAWINGS, side, side]
    """Draw every character of one typeface several times, white on black."""
    try:
        from PIL import ImageFont
    except ImportError as error:
        raise MissingDependencyError(
            "Pillow, which draws the typefaces, is not installed: pip install pillow"
        ) from error
    try:
        font = ImageFont.truetype(path, side * ENLARGED)
        return np.stack([_draw_character(font, name, character, side) for character in CHARACTERS])
    except OSError as error:
        raise DataError(f"{path} cannot be used as a font ({error}). Remove it or install it again.") from error


def _draw_character(font: ImageFont.FreeTypeFont, name: str, character: str, side: int) -> NDArray[np.uint8]:
    from PIL import Image

    glyph = _draw_glyph(font, character, side * ENLARGED)
    rng = stream(0, "typefaces", name, character)  # the 0 is not a run's seed
    drawings = []
    for _ in range(DRAWINGS):
        large = glyph.transform(
            glyph.size, Image.Transform.AFFINE, _draw_motion(rng, glyph.width), Image.Resampling.BILINEAR
        )
        drawings.append(np.asarray(large.reduce(ENLARGED)))
    return np.stack(drawings)


def _draw_glyph(font: ImageFont.FreeTypeFont, character: str, side: int) -> Image.Image:
    """Draw one upright character as large as the box allows, in the middle of the image."""
    from PIL import Image, ImageDraw

    left, top, right, bottom = font.getbbox(character)
    width, height = max(1, math.ceil(right - left)), max(1, math.ceil(bottom - top))
    ink = Image.new("L", (width, height))
    ImageDraw.Draw(ink).text((-left, -top), character, fill=255, font=font)
    scale = BOX_SHARE * side / max(width, height)
    ink = ink.resize((max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.BILINEAR)
    image = Image.new("L", (side, side))
    image.paste(ink, ((image.width - ink.width) // 2, (image.height - ink.height) // 2))
    return image


def _draw_motion(rng: np.random.Generator, side: int) -> tuple[float, ...]:
    """Draw how a character is turned, slanted, scaled and shifted: six numbers, of an affine map about the middle."""
    angle = math.radians(rng.uniform(-MOST_DEGREES, MOST_DEGREES))
    slant = rng.uniform(-MOST_SLANT, MOST_SLANT)
    across, down = 1 / rng.uniform(SMALLEST, LARGEST, size=2)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    linear = np.diag([across, down]) @ np.array([[1.0, slant], [0.0, 1.0]]) @ turn
    middle = np.full(2, side / 2)
    offset = middle - linear @ (middle + rng.uniform(-MOST_SHIFT, MOST_SHIFT, size=2) * side)
    return (*linear[0].tolist(), float(offset[0]), *linear[1].tolist(), float(offset[1]))


def _make_examples(pixels: NDArray[np.uint8]) -> Examples:  # [faces, characters, drawings, H, W]
    faces, characters, drawings = pixels.shape[:3]
    labels = np.tile(np.repeat(np.arange(characters, dtype=np.int64), drawings), faces)
    return Examples(pixels.reshape(-1, 1, *pixels.shape[3:]), labels)


KIND = DatasetKind(
    name="typefaces",
    summary="digits and capitals in 20 handwriting-like typefaces, 28×28 grey, 36 classes; drawn from Debian's fonts",
    load=load,
    locate=locate,
    install=FILES.install,
    defaults={
        "servers": 10,  # with two faces each
        "split": "groups",
        "rounds": 40,
        "images_per_server": 2016,
        "validation_images": 200,
        "network": "small-cnn",
        "common_init": True,
        "samples_per_round": 60,
        "local_passes": 4,
        "learner": {"learning_rate": 0.003},
        # The price of the model that is really sent.
        "energy": {"model_bits": "actual", "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25},
    },
)
