"""Images as features: text lines as columns of grey, pictures as rows of colour, videos as frames. Pillow decodes them.

Pixels are stored as bytes; the model multiplies them by `step` to get numbers from 0 to 1.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.base import MissingExtraError
from dragoman.base.config import Size, setting
from dragoman.data.media.files import MediaError, unpacked_folder

COLOURS = 3
MAX_PIXELS = 40_000_000  # a page of A4 at 600 dpi has 35 million
# Without those for which pillow starts other programs (EPS).
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP", "PPM")


@dataclass(frozen=True)
class LineImageConfig:
    """Images of text lines as a sequence of pixel columns in reading direction; ink is 1."""

    kind: ClassVar[str] = "line-image"
    height: Size = setting(48, help="scale every line to this height in pixels, keeping its proportions")
    background: Literal["light", "dark"] = setting("light", help="the colour of the background, which becomes 0")
    max_width: Size = setting(4000, help="in pixels; a line that is wider at this height is a fault")
    measure: ClassVar[str] = "pixels"
    unit: ClassVar[str] = "columns"
    dtype: ClassVar[str] = "uint8"
    step: ClassVar[float] = 1 / 255

    @property
    def features(self) -> int:
        return self.height

    @property
    def summary(self) -> str:
        return f"{self.height} pixels a column of a line of text, 0 is background and 1 ink"

    def decode(self, data: bytes, path: str) -> NDArray[np.uint8]:
        return self.decode_with_step(data, path)[0]

    def decode_with_step(self, data: bytes, path: str) -> tuple[NDArray[np.uint8], float]:
        """The columns (W, H) of a file's content, and how many pixels of the original image one column covers."""
        image = open_image(data, path, "L")
        width = max(1, round(image.width * self.height / image.height))
        if width > self.max_width:
            raise MediaError(path, "over-long", f"found a line of {width} pixels, expected at most {self.max_width}")
        pixels = np.asarray(image.resize((width, self.height)) if image.height != self.height else image)
        columns = pixels.T if self.background == "dark" else 255 - pixels.T
        return np.ascontiguousarray(columns), image.width / width


@dataclass(frozen=True)
class PictureConfig:
    """Pictures as rows of RGB pixels, scaled to a square whatever their proportions."""

    kind: ClassVar[str] = "picture"
    size: Size = setting(80, help="width and height in pixels")
    unit: ClassVar[str] = "rows"
    dtype: ClassVar[str] = "uint8"
    step: ClassVar[float] = 1 / 255

    @property
    def features(self) -> int:
        return COLOURS * self.size

    @property
    def summary(self) -> str:
        return f"pictures of {self.size} × {self.size} pixels, {self.features} numbers a row: red, green and blue"

    def decode(self, data: bytes, path: str) -> NDArray[np.uint8]:
        image = open_image(data, path, "RGB")
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size))
        return np.asarray(image).reshape(self.size, self.features)


@dataclass(frozen=True)
class VideoConfig:
    """Videos as frames: a folder of pictures in the order of their names, a tar archive of them, or an animation."""

    kind: ClassVar[str] = "video"
    size: Size = setting(32, help="width and height in pixels to which every frame is scaled")
    every: Size = setting(1, help="read every n-th frame")
    max_frames: Size = setting(500, help="a video with more frames, after `every`, is a fault")
    measure: ClassVar[str] = "frames"
    unit: ClassVar[str] = "frames"
    dtype: ClassVar[str] = "uint8"
    step: ClassVar[float] = 1 / 255
    reads_folders: ClassVar[bool] = True

    @property
    def features(self) -> int:
        return COLOURS * self.size**2

    @property
    def summary(self) -> str:
        return f"videos, {self.size} × {self.size} pixels a frame: red, green and blue"

    def decode(self, data: bytes, path: str) -> NDArray[np.uint8]:
        pictures = unpacked_folder(data, path)
        most = self.every * self.max_frames + 1
        if pictures is None:
            frames = open_images(data, path, "RGB", most)[:: self.every]
        else:
            kept = list(pictures.items())[:most][:: self.every]
            frames = [open_image(content, f"{path}/{name}", "RGB") for name, content in kept]
        if len(frames) > self.max_frames:
            raise MediaError(path, "over-long", f"found over {self.max_frames} frames, expected at most that many")
        size = (self.size, self.size)
        return np.stack([np.asarray(frame.resize(size)).reshape(-1) for frame in frames])

    def decode_with_step(self, data: bytes, path: str) -> tuple[NDArray[np.uint8], float]:
        """The frames (T, F), and how many frames of the original one of them stands for."""
        return self.decode(data, path), float(self.every)


def open_image(data: bytes, path: str, mode: str) -> Any:
    """A decoded image in a pillow mode ("L", "RGB"), rotated as its EXIF data say, on white where it is transparent."""
    return open_images(data, path, mode, 1)[0]


def open_images(data: bytes, path: str, mode: str, most: int) -> list[Any]:
    """The first pictures of an image file; all but animations have one."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise MissingExtraError("reading images", "pillow", "media") from None
    if not data:
        raise MediaError(path, "unreadable-file", "cannot be read as an image (the file is empty)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # pillow refuses images of twice that size
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError(
                        f"found {image.width:,} × {image.height:,} pixels, expected {MAX_PIXELS:,} or fewer"
                    )
                images = []
                for number in range(min(most, getattr(image, "n_frames", 1))):
                    image.seek(number)
                    images.append(ImageOps.exif_transpose(image))
            return [_on_white(Image, upright).convert(mode) for upright in images]
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        unknown = isinstance(error, UnidentifiedImageError)
        reason = f"expected {', '.join(FORMATS)}" if unknown else str(error).partition("\n")[0].rstrip(".")
        raise MediaError(path, "unreadable-file", f"cannot be read as an image ({reason})") from None


def _on_white(pillow: Any, upright: Any) -> Any:
    """An image without transparency, of eight bits a pixel."""
    if upright.has_transparency_data:
        clear = upright.convert("RGBA")
        return pillow.alpha_composite(pillow.new("RGBA", clear.size, "white"), clear)
    if upright.mode == "F":  # the value of white is unknown
        raise ValueError("found floating-point pixels, expected whole numbers")
    if upright.mode.startswith("I"):  # 16 bits per pixel, which pillow would clip at 255
        return pillow.fromarray((np.asarray(upright, np.int64) >> 8).astype(np.uint8))
    return upright
