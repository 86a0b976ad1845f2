"""Files in the chat: text and code, PDFs as text or as pictures, long pastes; their bounds."""

import base64
import io
import json
import re
import time
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from PIL import Image
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand
from tests.browser.standin import StandIn
from tests.browser.test_chat import CHAT, PIXEL, bodies, say
from tests.browser.test_conversations import message
from tests.browser.test_inert import GUARD, MARK, untouched
from tests.browser.test_pages import check
from tests.browser.test_real import talk
from tests.hang import HANG

pytestmark = pytest.mark.browser

Shoot: TypeAlias = Callable[[Page, str], None]

COUNT = ("POST", "/v1/chat/completions/input_tokens")
CODE = b"def area(side: float) -> float:\n    return side * side\n"


def pdf(*pages: str | Image.Image) -> bytes:
    """A PDF; a page is a line of text, or a picture that fills it, as of a scanner."""
    objects: list[bytes] = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]

    def add(dictionary: bytes, data: bytes | None = None) -> int:
        stream = b"" if data is None else b"\nstream\n" + data + b"\nendstream"
        objects.append(dictionary + stream)
        return len(objects)

    kids = []
    for page in pages:
        if isinstance(page, str):
            data = f"BT /F 24 Tf 72 700 Td ({page}) Tj ET".encode()
            resources = b"<< /Font << /F 3 0 R >> >>"
        else:
            packed = io.BytesIO()
            page.save(packed, "JPEG2000")
            head = f"<< /Type /XObject /Subtype /Image /Width {page.width} /Height {page.height}"
            head += f" /Filter /JPXDecode /Length {len(packed.getvalue())} >>"
            picture = add(head.encode(), packed.getvalue())
            data, resources = (
                b"612 0 0 792 0 0 cm /I Do",
                b"<< /XObject << /I %d 0 R >> >>" % picture,
            )
        data = zlib.compress(data)
        content = add(b"<< /Filter /FlateDecode /Length %d >>" % len(data), data)
        kids.append(
            add(
                b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
                b" /Resources %s >>" % (content, resources)
            )
        )
    listed = b" ".join(b"%d 0 R" % kid for kid in kids)
    objects[1] = b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(kids), listed)
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, one in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer << /Size %d /Root 1 0 R >>\n" % (len(objects) + 1)
    return bytes(out + b"startxref\n%d\n%%%%EOF\n" % table)


def scanned(*pages: Any) -> bytes:
    return pdf(*(Image.new("RGB", (306, 396), color) for color in pages))


def given(name: str, data: bytes, kind: str = "") -> FilePayload:
    return {"name": name, "mimeType": kind, "buffer": data}


def chosen(page: Page, *files: FilePayload) -> Locator:
    """What of them is listed to be sent, once all are read."""
    page.get_by_label("Files to send").set_input_files(list(files))
    listed = page.locator(".composer .file")
    expect(listed.filter(has_text="reading…")).to_have_count(0)
    return listed


def sees(stand: Stand, modalities: tuple[str, ...] = ("text", "image")) -> StandIn:
    one = reports.model("sees", state="loaded", modalities=list(modalities))
    return stand(reports.snapshot(models=[one]), {CHAT: reports.answer("I have read it.")})


def test_text_and_code_are_sent_before_the_message(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    server = stand(answers={CHAT: reports.answer("A square."), COUNT: {"input_tokens": 17}})
    page = open_page(server.url)
    latin = "Straße\r\n".encode("windows-1252")
    listed = chosen(page, given("area.py", CODE), given("note.txt", latin, "text/plain"))
    expect(listed).to_have_count(2)
    expect(listed.first).to_contain_text("area.py2 lines · 17 tokens")
    expect(page.get_by_label("Context", exact=True)).to_have_attribute("aria-valuenow", "34")
    counted = {body["messages"][0]["content"] for body in server.sent(*COUNT)}
    assert counted == {CODE.decode(), "Straße\n"}
    message(page).fill("What is it?")
    check(page)
    shoot(page, "files")
    answer = say(page, "What is it?")
    sent = bodies(server)[-1]["messages"][0]["content"]
    assert sent == (
        f'<document name="area.py">\n{CODE.decode()}</document>\n\n'
        '<document name="note.txt">\nStraße\n</document>\n\nWhat is it?'
    )
    expect(page.locator(".composer .file")).to_have_count(0)
    page.get_by_role("button", name="area.py", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("return side * side")
    page.keyboard.press("Escape")
    page.reload()
    expect(page.locator(".said .file")).to_have_count(2)
    shoot(page, "files-sent")
    expect(answer).to_contain_text("A square.")


def test_a_pdf_is_sent_as_text_or_as_pictures(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    server = sees(stand)
    page = open_page(server.url)
    listed = chosen(page, given("plan.pdf", pdf("The first page.", "The second page.")))
    expect(listed).to_contain_text("2 pages")
    say(page, "Sum it up")
    sent = bodies(server)[-1]["messages"][0]["content"]
    assert "[Page 1]\nThe first page.\n\n[Page 2]\nThe second page.\n</document>" in sent
    listed = chosen(page, given("plan.pdf", pdf("The first page.", "The second page.")))
    listed.get_by_text("As pictures").click()
    expect(listed).to_contain_text("2 pages, as pictures")
    listed.get_by_role("button", name="plan.pdf", exact=True).click()
    expect(page.get_by_alt_text("Page 2")).to_be_visible()
    shoot(page, "file-pages")
    page.keyboard.press("Escape")
    say(page, "And how does it look?")
    text, first, second = bodies(server)[-1]["messages"][-1]["content"]
    assert text["text"].startswith('<document name="plan.pdf" pages="2">')
    assert first["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert second["image_url"]["url"] != first["image_url"]["url"]


COLOUR = """async () => {
    const picture = document.querySelector('.pages img');
    await picture.decode();
    const canvas = document.createElement('canvas');
    const context = canvas.getContext('2d');
    context.drawImage(picture, 0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
}"""


def test_a_scanned_pdf_is_pictures_where_the_model_sees(stand: Stand, open_page: OpenPage) -> None:
    """Its JPEG 2000 is decoded without WebAssembly, which the page's policy forbids."""
    page = open_page(sees(stand).url)
    listed = chosen(page, given("scan.pdf", scanned((200, 30, 30))))
    expect(listed).to_contain_text("1 page, as pictures")
    listed.get_by_role("button", name="scan.pdf", exact=True).click()
    page.get_by_alt_text("Page 1").wait_for()
    red, green, blue, _ = page.evaluate(COLOUR)
    assert (red > 180, green < 60, blue < 60) == (True, True, True)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (given("scan.pdf", scanned("white")), "has no text .it may be scanned."),
        (given("broken.pdf", b"%PDF-1.7\nnothing"), "is no PDF, or a broken one"),
        (given("program", bytes(range(256)) * 40), "is neither text, nor a PDF, nor a picture"),
        (given("song.mp3", b"ID3", "audio/mpeg"), "has sound or film"),
        (given("empty.txt", b""), "is empty"),
        (given("large.log", b"x" * (2 * 2**20 + 1)), "at most 2.00 MiB"),
    ],
    ids=lambda one: one["name"] if isinstance(one, dict) else "",
)
def test_what_cannot_be_sent_is_said(
    file: FilePayload, why: str, stand: Stand, open_page: OpenPage
) -> None:
    page = open_page(sees(stand, ("text",)).url)
    listed = chosen(page, file)
    expect(page.get_by_text(re.compile(f"^{file['name']}.* {why}"))).to_be_visible()
    expect(listed).to_have_count(0)


def bomb() -> bytes:
    """A page of 60 MB of operators that draw nothing, in 60 kB."""
    packed = zlib.compress(b"q Q " * 15_000_000, 9)
    head = b"<< /Filter /FlateDecode /Length %d >>\nstream\n" % len(packed)
    body = b"trailer << /Root 1 0 R >>\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"
    body += b"2 0 obj\n<< /Type /Pages /Count 1 /Kids [3 0 R] >>\nendobj\n3 0 obj\n<< /Type /Page"
    body += b" /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources << >> >>\nendobj\n"
    return b"%PDF-1.7\n" + body + b"4 0 obj\n" + head + packed + b"\nendstream\nendobj\n"


def test_reading_a_pdf_ends_in_time(stand: Stand, open_page: OpenPage) -> None:
    """Also where its reader is at it for long: its worker is ended."""
    page = open_page(stand().url)
    message(page).wait_for()
    why = page.evaluate(
        """async text => {
            const {readPdf} = await import('/ui/chat/pdf.js');
            const data = Uint8Array.from(atob(text), sign => sign.charCodeAt(0)).buffer;
            return readPdf(data, {limit: 500}).then(() => 'read', error => error.message);
        }""",
        base64.b64encode(bomb()).decode(),
    )
    assert why == "takes too long to read"
    ends = time.monotonic() + HANG
    while page.workers:  # told of its end a little later
        assert time.monotonic() < ends, "its worker goes on"
        page.wait_for_timeout(10)


PASTE = """text => {
    const data = new DataTransfer();
    data.setData('text/plain', text);
    document.querySelector('.composer textarea').dispatchEvent(
        new ClipboardEvent('paste', {bubbles: true, cancelable: true, clipboardData: data}));
}"""


def test_a_long_paste_is_a_file_until_it_is_put_back(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand().url)
    message(page).wait_for()
    text = "A line of a log.\n" * 1_000
    page.evaluate(PASTE, text)
    listed = page.locator(".composer .file")
    expect(listed).to_contain_text("Pasted text.txt1000 lines")
    listed.get_by_text("Put into the message").click()
    expect(message(page)).to_have_value(text)
    expect(listed).to_have_count(0)


def test_files_that_were_not_sent_yet_stay(stand: Stand, open_page: OpenPage) -> None:
    server = sees(stand)
    page = open_page(server.url)
    message(page).fill("Sum them up")
    picture = given("p.png", PIXEL, "image/png")
    expect(chosen(page, given("area.py", CODE), given("plan.pdf", pdf("A page.")))).to_have_count(2)
    page.get_by_label("Files to send").set_input_files([picture])
    expect(page.locator(".composer img")).to_have_count(1)
    page.reload()
    listed = page.locator(".composer .file")
    expect(listed).to_have_count(2)
    expect(page.locator(".composer img")).to_have_count(1)
    listed.last.get_by_text("As pictures").click()  # the PDF itself is there, too
    expect(listed.last).to_contain_text("as pictures")
    say(page, "Sum them up")
    assert len(bodies(server)[-1]["messages"][0]["content"]) == 3
    page.reload()
    expect(page.locator(".said .file")).to_have_count(2)
    expect(listed).to_have_count(0)


DRAFTS = """async () => {
    const {drafts} = await import('/ui/chat/conversation.js');
    return (await drafts.readAll()).found.length;
}"""


def test_files_of_a_deleted_conversation_are_deleted(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand(answers={CHAT: reports.answer("Yes.")}).url)
    say(page, "Hello")
    chosen(page, given("area.py", CODE))
    page.get_by_label("Actions for Hello").click()
    page.get_by_text("Delete").click()
    expect(page.locator(".said")).to_have_count(0)
    chosen(page, given("area.py", CODE))
    assert page.evaluate(DRAFTS) == 2  # until then it can be undone
    page.reload()
    expect(page.locator(".composer .file")).to_have_count(1)
    assert page.evaluate(DRAFTS) == 1


def test_more_than_the_context_is_said_before_it_is_sent(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand(answers={COUNT: {"input_tokens": 40_000}}).url)
    chosen(page, given("book.txt", b"word " * 40_000))
    expect(page.locator(".composer [role=alert]")).to_have_text(
        re.compile("40.000 of 32.768 tokens of context: too long for this model")
    )


def test_files_are_dropped(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand().url)
    message(page).wait_for()
    page.evaluate(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File(['one'], 'one.md', {type: 'text/markdown'}));
            data.items.add(new File(['<svg/>'], 'two.svg', {type: 'image/svg+xml'}));
            document.querySelector('.chat').dispatchEvent(
                new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: data}));
        }"""
    )
    expect(page.locator(".composer .file")).to_have_count(2)
    page.get_by_label("Remove one.md").click()
    expect(page.locator(".composer .file")).to_contain_text(["two.svg"])


def test_names_and_texts_of_files_are_text(stand: Stand, open_page: OpenPage) -> None:
    page = open_page("about:blank")
    page.add_init_script(GUARD)
    page.goto(stand(answers={CHAT: reports.answer("Yes.")}).url)
    name = f"{MARK}.txt".replace("/", "")
    chosen(page, given(name, MARK.encode()))
    say(page, "Read")
    page.locator(".said .file-name").click()
    expect(page.get_by_role("dialog")).to_contain_text(MARK)
    untouched(page)


def test_long_files_are_not_kept_twice(stand: Stand, open_page: OpenPage) -> None:
    """The request that is shown beside an answer has their beginnings."""
    server = stand(answers={CHAT: reports.answer("Yes.")})
    page = open_page(server.url)
    chosen(page, given("long.txt", b"word " * 5_000))
    answer = say(page, "Read")
    assert len(json.dumps(bodies(server)[-1])) > 25_000
    answer.get_by_label("What was sent").click()
    assert len(page.get_by_label("request", exact=True).inner_text()) < 4_000


def test_a_real_model_reads_files_and_sees_pages(real: str, open_page: OpenPage) -> None:
    page = open_page(real)
    talk(page, "beta", "Hello").get_by_label("What was sent").wait_for()
    listed = chosen(page, given("plan.pdf", pdf("The only page.")), given("area.py", CODE))
    expect(listed.first).to_contain_text(re.compile(r"1 page · \d+ tokens"))  # counted there
    listed.first.get_by_text("As pictures").click()
    expect(listed.first).to_contain_text("1 page, as pictures")
    answer = say(page, "Look")
    expect(answer).to_contain_text("1236x1600 #")
