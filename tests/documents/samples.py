"""Small documents of every format, and translators that need no model."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable

from dragoman.documents.base import Document, UnitTranslation
from dragoman.inference.segments.markup import Aligned, place_markup, words_of

XLIFF1 = """<?xml version="1.0" encoding="UTF-8"?>
<!-- a comment -->
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file source-language="en" original='a "b"' datatype="plaintext"><body>
    <trans-unit id="1">
      <source>hello <g id="1">bright <x id="2"/>world</g> &amp; more</source>
    </trans-unit>
    <group translate="no"><trans-unit id="2"><source>keep</source></trans-unit></group>
    <trans-unit id="3"><source>done</source><target state="final">fertig</target></trans-unit>
    <trans-unit id="4"><source>press <ph id="1">&lt;br/></ph>now <mrk mtype="protected">ACME</mrk></source><target/>
    </trans-unit>
  </body></file>
</xliff>
"""
XLIFF2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en"><file id="f"><unit id="u">
 <originalData><data id="d1">&lt;b></data></originalData>
 <segment id="s1"><source>one <pc id="1" dataRefStart="d1">two</pc>.</source></segment>
 <segment><source>three.</source><target>drei.</target></segment>
 <segment><source>four <ph id="3"/>five.</source></segment>
</unit></file></xliff>
"""
TMX = """<?xml version="1.0"?>\r
<!DOCTYPE tmx SYSTEM "tmx14.dtd">\r
<tmx version="1.4"><header srclang="en" datatype="plaintext"/>\r
<body>\r
<tu tuid="1">\r
  <tuv xml:lang="en-US"><seg>hello <bpt i="1">&lt;b&gt;</bpt>world<ept i="1">&lt;/b&gt;</ept></seg></tuv>\r
</tu>\r
<tu><tuv xml:lang="EN"><seg>two</seg></tuv><tuv xml:lang="de"><seg>zwei</seg></tuv></tu>\r
</body></tmx>\r
"""
PO = r"""# comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=n;\n"

#, c-format
msgid "hello %s, \"you\" \\ tab\t"
msgstr ""

msgctxt "menu"
msgid ""
"two lines\n"
"of text\n"
msgstr ""

msgid "done"
msgstr "fertig"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#~ msgid "old"
#~ msgstr "alt"
"""
SRT = "1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>tom</i> & jerry\r\nare here\r\n\r\n2\r\n00:03 --> x\r\n"
VTT = "WEBVTT\n\nNOTE no\n\n00:01.000 --> 00:02.000 align:start\n<v Bob>cats &amp; dogs\n"
HTML = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>my page</title><script>var a="<p>no</p>"</script>
</head><body class="x"><p>hello <b>bold</b> &amp; <code>X=1</code> world<br/>next</p><p translate=no>KEEP</p></body>
"""
MARKDOWN = """---
title: X
---
# a *nice* heading #

some **bold text** with `code` and a [link *here*](http://x.y "T") that
goes on over several lines. a second sentence
with_underscore_words and 2 * 3 * 4.

- item one
- [ ] task item
  1. nested

> quoted text

| a | b `x|y` |
|---|--:|
| cell one | cell **two** |

```python
code = 1
```

    indented code

setext
======

[ref]: http://example.com

<div class="X">
<p>some <b>html</b> text</p>
</div>

hard break\x20\x20
next line ![alt](a.png)
"""
TEXT = "\ufeff one two. three!\r\n\r\n  four \n"
_NAMES = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
WORD = f"""<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<w:document {_NAMES}><w:body>
<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>a heading</w:t></w:r></w:p>
<w:p w:rsidR="00"><w:r><w:t xml:space="preserve">plain </w:t></w:r><w:proofErr w:type="spellStart"/><w:r>
<w:rPr><w:b/></w:rPr><w:t>bold &amp; brave</w:t></w:r><w:r><w:t xml:space="preserve"> end</w:t></w:r></w:p>
<w:p><w:r><w:t>left</w:t><w:tab/><w:t>right</w:t></w:r></w:p>
<w:p><w:r><w:t xml:space="preserve">see </w:t></w:r><w:hyperlink w:anchor="x"><w:r><w:rPr><w:u/></w:rPr>
<w:t>this long link</w:t></w:r></w:hyperlink><w:r><w:t xml:space="preserve"> page </w:t></w:r>
<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r>
<w:instrText> PAGE </w:instrText></w:r><w:r><w:fldChar w:fldCharType="separate"/></w:r><w:r><w:t>3</w:t></w:r><w:r>
<w:fldChar w:fldCharType="end"/></w:r></w:p>
<w:p><w:r><w:t>outer</w:t></w:r><w:r><w:pict><w:txbxContent><w:p><w:r><w:t>inner</w:t></w:r></w:p></w:txbxContent></w:pict>
</w:r></w:p>
<w:p/><w:sectPr/></w:body></w:document>"""


def package(document: bytes | str = WORD, **others: bytes) -> bytes:
    """A .docx with this text."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("[Content_Types].xml", "<Types/>")
        file.writestr("word/document.xml", document)
        for name, data in others.items():
            file.writestr(name, data)
    return out.getvalue()


SAMPLES: dict[str, bytes] = {
    "a.xlf": XLIFF1.encode(),
    "b.xliff": XLIFF2.encode(),
    "utf16.xlf": b"\xff\xfe" + XLIFF1.replace("UTF-8", "UTF-16").encode("utf-16-le"),
    "a.tmx": TMX.encode(),
    "a.po": PO.encode(),
    "a.srt": SRT.encode(),
    "a.vtt": VTT.encode(),
    "a.html": HTML.encode(),
    "a.md": MARKDOWN.encode(),
    "a.txt": TEXT.encode(),
    "a.docx": package(),
}


def outputs(document: Document, change: Callable[[str], str], everything: bool = False) -> list[UnitTranslation | None]:
    """Translations of one word for each word, by a function."""
    found: list[UnitTranslation | None] = []
    for unit in document.units:
        words = list(range(len(words_of(unit.block.text))))
        text = change(unit.block.text)
        aligned = place_markup(unit.block, Aligned(text, words, words))
        found.append(None if unit.translated and not everything else UnitTranslation(aligned, text, 0.876))
    return found
