"""Made-up media of the lectures: recordings in which every letter is a tone, pictures and clips of a beach."""

from __future__ import annotations

import io
import random
import wave
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

RATE = 4000
TONES = {"h": 260.0, "e": 420.0, "l": 680.0, "o": 1100.0, "y": 1600.0}
WORDS = ["hello", "hell", "hole", "yell", "lolly", "holly", "holy", "eel", "hey", "oh", "ol", "le"]
BANDS = {"low": 300.0, "mid": 900.0, "high": float("inf")}  # tags of sounds, by the highest frequency of a tone
COLOURS = {"red": (214, 40, 40), "yellow": (250, 210, 40), "white": (245, 245, 245)}
SKY, SEA, SAND = (150, 200, 240), (30, 90, 160), (225, 200, 140)
SIDE = 32
Files = dict[str, bytes]


def recording(tones: list[float], draw: random.Random) -> tuple[bytes, list[tuple[bool, float]]]:
    """A WAV file of tones with short silences around them, and the ends of all parts in seconds."""
    noise = np.random.default_rng(draw.randrange(1 << 30))
    samples, ends = np.zeros(RATE // 25), [(False, 0.04)]
    for tone in tones:
        time = np.arange(int(RATE * draw.uniform(0.08, 0.12))) / RATE
        for sounds, part in ((True, 0.5 * np.sin(2 * np.pi * tone * time)), (False, np.zeros(RATE // 25))):
            samples = np.concatenate([samples, part])
            ends.append((sounds, len(samples) / RATE))
    samples = samples + 0.01 * noise.standard_normal(len(samples))
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32000).astype("<i2").tobytes())
    return out.getvalue(), ends


def spoken(word: str, draw: random.Random) -> bytes:
    """A word whose letters are tones."""
    return recording([TONES[letter] * draw.uniform(0.97, 1.03) for letter in word], draw)[0]


def recordings() -> Files:
    draw, rows, files = random.Random(5), [], {}
    for number in range(72):
        word = WORDS[number % len(WORDS)]
        files[f"recordings/{number:02d}.wav"] = spoken(word, draw)
        rows.append(f"{number:02d}.wav\t{word}\n")
    return {**files, "hello.wav": spoken("hello", random.Random(9)), "recordings.tsv": "".join(rows).encode()}


def sounds() -> Files:
    draw, rows, files = random.Random(6), [], {}
    for number in range(36):
        tones = [draw.choice(list(TONES.values())) for _ in range(draw.randint(2, 5))]
        files[f"sounds/{number:02d}.wav"], ends = recording(tones, draw)
        bands = iter([next(name for name, most in BANDS.items() if tone < most) for tone in tones])
        tags = " ".join(f"{next(bands) if sounds else 'silence'}@{end:.3f}" for sounds, end in ends)
        rows.append(f"{number:02d}.wav\t{tags}\n")
    return {**files, "hello.wav": spoken("hello", random.Random(9)), "sounds.tsv": "".join(rows).encode()}


def beach(thing: str, colour: str, place: float, draw: random.Random) -> Any:
    """Sky, sea and sand with a thing: a ball lies on the sand, a boat is at sea; `place` goes from left to right."""
    pixels = np.empty((SIDE, SIDE, 3))
    pixels[:11], pixels[11:21], pixels[21:] = SKY, SEA, SAND
    column, top = round(place * (SIDE - 8)), 22 if thing == "ball" else 9
    rows, columns = np.mgrid[:SIDE, :SIDE]
    if thing == "ball":
        inside = (rows - top - 4) ** 2 + (columns - column - 4) ** 2 <= 16
    else:
        inside = (rows >= top) & (rows < top + 7) & (abs(columns - column - 4) * 2 <= rows - top + 2)
    pixels[inside] = COLOURS[colour]
    noise = np.random.default_rng(draw.randrange(1 << 30)).normal(0, 6, pixels.shape)
    return (pixels + noise).clip(0, 255).astype("uint8")


def png(pixels: Any) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "png")
    return out.getvalue()


def things(draw: random.Random, count: int) -> Iterator[tuple[str, str]]:
    for _ in range(count):
        yield draw.choice(["ball", "boat"]), draw.choice(list(COLOURS))


def pictures() -> Files:
    draw, rows, files = random.Random(7), [], {}
    for number, (thing, colour) in enumerate(things(draw, 180)):
        files[f"pictures/{number:03d}.png"] = png(beach(thing, colour, draw.random(), draw))
        where = "on the sand" if thing == "ball" else "at sea"
        rows.append(f"{number:03d}.png\ta {colour} {thing} {where}\n")
    return {**files, "beach.png": png(beach("ball", "red", 0.7, draw)), "pictures.tsv": "".join(rows).encode()}


def clips() -> Files:
    draw, rows, files = random.Random(8), [], {}
    for number, (thing, colour) in enumerate([("ball", "red"), *things(draw, 29)]):
        name = f"clips/{number}" if number else "clip0"  # clip0 is for the figures
        right, steps = number == 0 or draw.random() < 0.5, draw.randint(4, 6)
        for step in range(steps):
            place = 0.1 + 0.8 * step / (steps - 1)
            pixels = beach(thing, colour, place if right else 1 - place, draw)
            files[f"{name}/{step}.png"] = png(pixels)
        rows.append(f"{name}\ta {colour} {thing} moves {'right' if right else 'left'}\n")
    return {**files, "clips.tsv": "".join(rows).encode()}


MEDIA: dict[str, Callable[[], Files]] = {
    "recordings.tsv": recordings, "sounds.tsv": sounds, "pictures.tsv": pictures, "clips.tsv": clips,
}  # fmt: skip
