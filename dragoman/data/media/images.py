"""Image → rows of numbers (FIELD A4, A7): lines of text as columns of grey, pictures as rows of colour (extra 'media').

Numbers are stored as bytes; `step` makes them numbers from 0 to 1.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.config.settings import Size, setting
from dragoman.data.media.archives import MediaError, read_bytes
from dragoman.errors import MissingExtraError

COLOURS = 3
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP", "PPM")  # pillow also knows some that start other programs (EPS)


@dataclass(frozen=True)
class LineImageConfig:
    """Images of text lines as a row of columns, in the direction of reading, each as high as the line; ink is 1."""

    kind: ClassVar[str] = "line-image"
    height: Size = setting(48, help="pixels: every line is scaled to this height, its width with it")
    paper: Literal["light", "dark"] = setting("light", help="which of the two is paper, and becomes 0")
    widest: Size = setting(4000, help="pixels; a line that is wider at this height is a fault")
    measure: ClassVar[str] = "pixels"
    unit: ClassVar[str] = "columns"
    dtype: ClassVar[str] = "uint8"
    step: ClassVar[float] = 1 / 255

    @property
    def features(self) -> int:
        """Numbers a column."""
        return self.height

    @property
    def about(self) -> str:
        """What a model reads of a line."""
        return f"{self.height} pixels a column of a line of text, 0 is paper and 1 ink"

    def decode(self, data: bytes, place: str) -> NDArray[np.uint8]:
        """The columns (W, H) of a file's bytes."""
        return self.measured(data, place)[0]

    def measured(self, data: bytes, place: str) -> tuple[NDArray[np.uint8], float]:
        """The same, and how many pixels of the image as it is a column stands for."""
        image = opened(data, place, "L")
        width = max(1, round(image.width * self.height / image.height))
        if width > self.widest:
            raise MediaError(place, "over-long", f"found a line of {width} pixels, expected at most {self.widest}")
        pixels = np.asarray(image.resize((width, self.height)) if image.height != self.height else image)
        columns = pixels.T if self.paper == "dark" else 255 - pixels.T
        return np.ascontiguousarray(columns), image.width / width

    def features_of(self, place: str) -> NDArray[np.uint8]:
        """The columns of the image at a location."""
        return self.decode(read_bytes(place), place)


@dataclass(frozen=True)
class PictureConfig:
    """Pictures as rows of pixels, red, green and blue, scaled to a square whatever their shape."""

    kind: ClassVar[str] = "picture"
    size: Size = setting(80, help="pixels a side")
    unit: ClassVar[str] = "rows"
    dtype: ClassVar[str] = "uint8"
    step: ClassVar[float] = 1 / 255

    @property
    def features(self) -> int:
        """Numbers a row of pixels."""
        return COLOURS * self.size

    @property
    def about(self) -> str:
        """What a model reads of a picture."""
        return f"pictures of {self.size} × {self.size} pixels, {self.features} numbers a row: red, green and blue"

    def decode(self, data: bytes, place: str) -> NDArray[np.uint8]:
        """The rows (H, W·3) of a file's bytes."""
        image = opened(data, place, "RGB")
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size))
        return np.asarray(image).reshape(self.size, self.features)

    def features_of(self, place: str) -> NDArray[np.uint8]:
        """The rows of the picture at a location."""
        return self.decode(read_bytes(place), place)


def opened(data: bytes, place: str, mode: str) -> Any:
    """A decoded image in a mode of pillow's, upright as its camera says, on white where it is transparent."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise MissingExtraError("reading images", "pillow", "media") from None
    if not data:
        raise MediaError(place, "unreadable-file", "cannot be read as an image (the file is empty)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # of half of what it refuses
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                upright = ImageOps.exif_transpose(image)
            if upright.has_transparency_data:
                clear = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
            elif upright.mode == "F":  # of which nobody can say what is white
                raise ValueError("found pixels that are fractions, expected whole numbers")
            elif upright.mode.startswith("I"):  # 16 bits a pixel, which pillow would cut off at 255
                upright = Image.fromarray((np.asarray(upright, np.int64) >> 8).astype(np.uint8))
            return upright.convert(mode)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        unknown = isinstance(error, UnidentifiedImageError)
        reason = f"expected {', '.join(FORMATS)}" if unknown else str(error).partition("\n")[0].rstrip(".")
        raise MediaError(place, "unreadable-file", f"cannot be read as an image ({reason})") from None
