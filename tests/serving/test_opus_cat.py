"""OPUS-CAT's API, by requests in exactly the form that its plug-ins send them (their sources of January 2025)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import dragoman
from dragoman.data.languages import NAMES, THREE_LETTERS
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.routes.opus_cat import answer, in_order, piece_links, pieces
from dragoman.serving.translator import Translated
from tests.conftest import call
from tests.serving.conftest import Live, serving

# Address, method and headers by client; {} is the text. RestSharp sends the type of a body that it does not have, and
# memoQ's plug-in two quotes as the name of the model.
CLIENTS: dict[str, tuple[str, str, dict[str, str]]] = {
    "Trados": (
        "GET", "/MtRestService/TranslateJson?tokenCode=0&input={}&srcLangCode=ab&trgLangCode=cd&modelTag=",
        {"content-type": "application/json", "accept": "application/json, text/json, text/x-json"},
    ),
    "memoQ": (
        "GET", '/MtRestService/TranslateJson?tokenCode=0&input={}&srcLangCode=ab-US&trgLangCode=cd&modelTag=""', {}
    ),
    "OmegaT": (
        "GET", "/MTRestService/TranslateJson?input={}&modelTag=&srcLangCode=AB&tokenCode=0&trgLangCode=CD",
        {"user-agent": "OmegaT"},
    ),
    "Wordfast Classic": ("GET", "/MTRestService/TranslateJson?tokenCode=&input={}&srcLangCode=ab&trgLangCode=cd", {}),
    "Wordfast Pro": (
        "POST", "/MTRestService/TranslatePost?tokenCode=0&input={}&srcLangCode=ab&trgLangCode=cd&modelTag=", {}
    ),
    "Chrome": ("GET", "/MTRestService/TranslateJson?tokenCode=0&input={}&modelTag=", {}),
}  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_gets_its_translation(live: Live, runs: dict[str, Path], client: str) -> None:
    method, address, headers = CLIENTS[client]
    expected = str(dragoman.load(runs["ab-cd"], device="cpu").predict(["abcd"])[0])
    answer = live.client.request(method, address.format("abcd"), headers=headers)
    assert answer.status_code == 200, answer.text
    table = answer.json()
    assert table["translation"] == table["Translation"] == expected
    assert table["AlignmentString"]


def test_lists_status_and_what_trados_posts(live: Live) -> None:
    def get(path: str) -> Any:
        return live.client.get(f"/MtRestService/{path}").json()

    assert get("ListSupportedLanguagePairs?tokenCode=0") == ["ab-cd"]
    assert live.client.get("/MTRestService/ListSupportedLanguagePairs").json() == ["ab-cd"]  # OmegaT
    assert get("GetLanguagePairModelTags?tokenCode=0&srcLangCode=ab&trgLangCode=cd") == ["ab-cd"]
    assert get("GetLanguagePairModelTags?tokenCode=0&srcLangCode=ab&trgLangCode=xx") == []
    assert get("CheckModelStatus?tokenCode=0&srcLangCode=ab&trgLangCode=cd&modelTag=").startswith("Model ab-cd")
    assert "No model with tag old" in get("CheckModelStatus?tokenCode=0&srcLangCode=ab&trgLangCode=cd&modelTag=old")
    assert get("CheckModelStatus?tokenCode=0&srcLangCode=ab&trgLangCode=xx") == "No model available for ab-xx."
    address = "/MtRestService/PreOrderBatch?tokenCode=0&srcLangCode=ab&trgLangCode=cd&modelTag="
    assert live.client.post(address, json=["abc", "def"]).status_code == 200
    assert live.client.post("/MtRestService/Customize?tokenCode=0", json={"Input": []}).status_code == 501
    assert get("Translate?input=&srcLangCode=ab&trgLangCode=cd") == ""
    plain = live.client.get(
        "/MTRestService/TranslateStream?tokenCode=&input=abc&srcLangCode=ab&trgLangCode=cd&modelTag="
    )
    assert plain.headers["content-type"].startswith("text/plain")


def test_mistakes_are_answered_and_the_token_may_be_the_token_code(runs: dict[str, Path], tmp_path: Path) -> None:
    models = (ModelConfig(str(runs["ab-cd"]), name="ab-cd"), ModelConfig(str(runs["ab-cd"]), name="ab-cd.new"))
    config = ServeConfig(models=models, threads=1, device="cpu", token="secret")
    with serving(config, tmp_path / "spool") as live:

        def get(**fields: str) -> httpx.Response:
            given = {"tokenCode": "secret", "input": "abc", "srcLangCode": "ab", "trgLangCode": "cd"} | fields
            return live.client.get("/MTRestService/TranslateJson", params=given)

        assert get().status_code == get(srcLangCode="cd").status_code == 200  # the same language: nothing to do
        assert get(srcLangCode="cd").json()["translation"] == "abc"
        assert get(tokenCode="0").status_code == 403
        assert live.client.get("/MTRestService/ListSupportedLanguagePairs").status_code == 403
        assert "No model available for ab-xx" in get(trgLangCode="xx").json()["error"]
        assert get(input="x" * 60_000).status_code == 400
        assert get(inputIsSingleSentence="perhaps").status_code == 400
        named = {"tokenCode": "secret", "srcLangCode": "ab", "trgLangCode": "cd", "modelTag": "ab-cd.new"}
        tags = live.client.get("/MTRestService/GetLanguagePairModelTags", params=named)
        assert tags.json() == ["ab-cd.new", "ab-cd"]
        assert live.client.get("/MTRestService/Nothing", headers={"authorization": "Bearer secret"}).status_code == 404


def restore(elements: list[str], answer: dict[str, Any]) -> str:
    """What the plug-ins do: walk over the pieces of the source, and put each tag where its piece is aligned to."""
    import re

    def letters(text: str) -> str:
        return re.sub(r"[^\w,.]|_", "", text)

    queue, index, places = list(answer["SegmentedSourceSentence"]), 0, dict[int, list[str]]()
    links = {int(key): values for key, values in answer["SegmentedAlignmentSourceToTarget"].items()}
    for element in elements:
        if element.startswith("<"):
            nearest = min(links, key=lambda key: abs(key - index))
            sign = (index > nearest) - (index < nearest)
            places.setdefault(links[nearest][0] + sign, []).append(element)
            continue
        rest = letters(element)
        piece, index = letters(queue.pop(0)), index + 1
        while rest.startswith(piece):
            rest = rest[len(piece) :]
            if not rest or not queue:
                break
            piece, index = letters(queue.pop(0)), index + 1
    parts = []
    for number, piece in enumerate([*answer["SegmentedTranslation"], ""]):
        parts += [*places.get(number, []), piece.replace("▁", " ")]
    return "".join(parts).strip()


def test_tags_find_their_words() -> None:
    """By the plug-ins' own way; the words of the two languages stand in another order."""
    import torch

    from dragoman.inference.align.alignments import WordAlignment

    source, target = "press Start now.", "nyt paina Käynnistä."
    words = WordAlignment(tuple(source.split()), tuple(target.split()), {(0, 1), (1, 2), (2, 0)}, torch.zeros(3, 3))
    table = answer(Translated(target, alignment=words), source)
    assert table["SegmentedSourceSentence"] == ["▁press", "▁Start", "▁now", "."]
    assert table["SegmentedTranslation"] == ["▁nyt", "▁paina", "▁Käynnistä", "."]
    assert restore(["<a>", "press", "</a>", " Start now."], table) == "nyt<a> paina</a> Käynnistä."
    assert piece_links("abc", "xyz uvw", None) == {(0, 0), (0, 1)}
    assert in_order([], [1]) == set()


@pytest.mark.parametrize("text", ["", " a", "a  b\n c.", "“Hi,” she said…", "नमस्ते दुनिया", "一二。三", "x_y 3.5%"])
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces(text, " ")).replace("▁", " ").split() == text.split()


def test_the_words_of_trados_for_tags_are_left_out(live: Live) -> None:
    plain = live.client.get("/MTRestService/TranslateJson", params={"input": "abc"}).json()
    tagged = live.client.get("/MTRestService/TranslateJson", params={"input": " TAGPAIRSTART abc TAGPAIREND "}).json()
    assert tagged == plain


def test_three_letter_codes_that_memoq_sends() -> None:
    assert set(THREE_LETTERS.values()) == set(NAMES)


def test_the_preset_chooses_the_port(monkeypatch: pytest.MonkeyPatch, runs: dict[str, Path]) -> None:
    from dragoman.serving import server

    ports: list[int] = []
    monkeypatch.setattr(server, "serve", lambda config, say: ports.append(config.port))
    for more in ((), ("--port", "9000")):
        assert call("serve", runs["ab-cd"], "--opus-cat", *more).code == 0
    assert ports == [8500, 9000]
