"""Attacks on the console: its sign-in without a key, and its pages and forms with one."""

import json
import re
from functools import cache
from importlib.resources import files
from urllib.parse import quote, urlencode

from benchmarks.attacks.cases import CONTROL_TOKENS, STRANGE_NUMBERS, criterion
from benchmarks.attacks.fuzzing import UNITS
from benchmarks.attacks.routes import Route, routes
from benchmarks.attacks.target import Attack, Target

URLENCODED = "application/x-www-form-urlencoded"
_WITHOUT_KEY = {"Authorization": ""}
_LARGEST_FORM = 4 * 2**20
_AT_ONCE = 4
_PARAMETERS = (
    "q", "after", "request", "group", "digest", "fingerprint", "name", "around", "with", "order", "rows", "run",
    "reference", "from", "to", "first", "last", "low", "high", "step", "tag", "prefix", "criteria", "done", "id",
    "subject", "next", "example", "at", "outcome", "rubric",
)  # fmt: skip
_HOSTILE = (
    "\x00", "\ud800", "%" * 2000, "_" * 2000, "%_" * 1000, "\\%" * 1000, "a " * 1000, "é" * 2000, "(" * 500,
    "a OR " * 500, '"' * 2000, "*:* " * 500, "a" * 3000, "'\"><script>", "../" * 300, "@" * 500, "sha256:" + "0" * 64,
    "00" * 16 + ".0", "00" * 16 + ".0.0", *CONTROL_TOKENS, *STRANGE_NUMBERS,
)  # fmt: skip


@cache
def form_fields() -> tuple[str, ...]:
    """Return the names of the fields of every form of the console, without the token of the form."""
    folder = files("judge_server.api.console") / "templates"
    texts = [file.read_text(encoding="utf-8") for file in folder.iterdir()]
    named = {name for text in texts for name in re.findall(r'<(?:input|textarea|select)[^>]* name="(\w+)"', text)}
    return tuple(sorted(named - {"token"}))


@cache
def pages(method: str) -> tuple[Route, ...]:
    """Return the console's routes with a method, but for those of the sign-in."""
    return tuple(
        route
        for route in routes()
        if route.path.startswith("/console/") and route.method == method and "/sign-" not in route.path
    )


def hostile_query(on: Target) -> str:
    """Write a query with a third of all parameters of the console, each with hostile text."""
    chosen = on.draw.sample(_PARAMETERS, len(_PARAMETERS) // 3)
    given = {name: on.draw.choice(_HOSTILE).encode("utf-8", "surrogatepass") for name in chosen}
    if on.draw.random() < 0.5:
        given["run"] = b"attack"
    return urlencode(given)


def multipart(on: Target, token: str, file: bytes) -> tuple[str, bytes]:
    """Build a form with a file, in one case of two beyond a bound of the reader; return its type and its body."""
    boundary = on.draw.choice(("b", "b" * 70, "b" * 300, "'()+_,-./:=?", "\x00", ""))
    line = f"--{boundary}\r\n".encode()

    def part(header: str, content: bytes) -> bytes:
        return line + f"Content-Disposition: form-data; {header}\r\n\r\n".encode() + content + b"\r\n"

    parts = [part('name="token"', token.encode()), part('name="file"; filename="a.yaml"', file)]
    parts += on.draw.choice(
        (
            [],
            [part('name="a"', b"")] * 3000,
            [part(f'name="{"n" * 100_000}"', b"")],
            [part('name="file"; filename="' + "../" * 5000 + '"', file)],
            [part("name=" + '"\\' * 400, b"")],
            [part("; ".join(f"name*{n}=utf-8''%00" for n in range(40)), b"")],
            [line + b"A: b\r\n" * 1000 + b"\r\n\r\n"],
            [line[:-2] * 20_000],
            [b"\r\n--" * 500_000],
        )
    )
    end = on.draw.choice((f"--{boundary}--\r\n".encode(), b"", b"--"))
    kind = on.draw.choice(("multipart/form-data; boundary=", 'multipart/form-data; boundary="'))
    return kind + quote(boundary, safe="'()+_,-./:=?"), b"".join(parts) + end


async def token_of(on: Target, path: str, *, with_key: bool = True) -> str:
    """Return the token of the forms of a page, after which the client has its cookie; empty if there is no page."""
    answer = await on.send("GET", path, headers={} if with_key else _WITHOUT_KEY)
    found = re.search(r'"X-Form-Token":"([0-9a-f]{64})"', answer.text if answer is not None else "")
    return found[1] if found else ""


async def sign_in(on: Target) -> None:
    """Sign in and out without a key, with bodies of every type, size and number of fields."""
    token = await token_of(on, f"/console/sign-in?next={quote(on.draw.choice(UNITS).encode('utf-8', 'replace') * 100)}",
                           with_key=False)  # fmt: skip
    key = on.draw.choice(("adj_" + "a" * 60, "adj_" * 500_000, "\x00", "é" * 60, on.draw.choice(UNITS) * 1000))
    form = {"token": token, "key": key.encode("utf-8", "surrogatepass"), "next": "/console/" + "%2e./" * 1000}
    bodies = (
        urlencode(form).encode(),
        urlencode(form | {"token": "0" * 64}).encode(),
        b"token=" + token.encode() + b"&a=" * 5000,
        b"&" * 1_000_000,
        b"key=" + b"%" * 1_000_000,
        b"key=" + b"%ff" * 5000,
        b"key=" + b"a" * (2 * _LARGEST_FORM),
        b"",
    )
    types = (
        URLENCODED, URLENCODED, URLENCODED, f"{URLENCODED}; charset=utf-7", "multipart/form-data; boundary=b",
        "multipart/form-data; " + "a=b; " * 2000, "text/plain", "application/json", "a" * 4000, ";" * 4000,
    )  # fmt: skip
    paths = ("/console/sign-in", "/console/sign-in", "/console/sign-out")

    def headers() -> dict[str, str]:
        also = on.draw.choice(({}, {"X-Form-Token": "0" * 64}, {"Sec-Fetch-Site": "cross-site"}, {"HX-Request": "1"}))
        return {**_WITHOUT_KEY, "Content-Type": on.draw.choice(types), **also}

    await on.at_once(
        *(on.send("POST", on.draw.choice(paths), body=on.draw.choice(bodies), headers=headers()) for _ in range(8))
    )


async def without_session(on: Target) -> None:
    """Ask for pages without a key, with forged sessions and addresses to return to; send forms without a page."""
    cookies = (
        "adjudge_session=" + "a" * 3000, "adjudge_session=a.9.b; adjudge_form=c", "adjudge_session=é",
        "adjudge_session=" + "." * 3000, "a=b; " * 700,
    )  # fmt: skip
    returns = ("http://[", "/console/" + "a" * 6000, "//evil.example/", "http://a/console/runs?" + "b=c&" * 1000, "\\")

    def headers() -> dict[str, str | bytes]:
        given: dict[str, str | bytes] = {**_WITHOUT_KEY, "Cookie": on.draw.choice(cookies).encode()}
        return given | ({"HX-Current-URL": on.draw.choice(returns)} if on.draw.random() < 0.5 else {})

    shown = [f"{on.draw.choice(pages('GET')).path}?{hostile_query(on)[:6000]}" for _ in range(12)]
    sent = [on.draw.choice(pages("POST")).path for _ in range(6)]
    body = b"text=" + b"a" * 1_000_000
    static = [f"/console/static/{quote(name)}" for name in ("console.css", "../../app.py", "\x00", "a" * 3000)]
    await on.at_once(
        *(on.send("GET", path, headers=headers()) for path in [*shown, *static]),
        *(on.send("POST", path, body=body, headers=headers() | {"Content-Type": URLENCODED}) for path in sent),
    )


async def hostile_pages(on: Target) -> None:
    """Ask for every page with hostile parameters, a few at a time."""
    shown = list(pages("GET"))
    on.draw.shuffle(shown)
    for place in range(0, len(shown), _AT_ONCE):
        some = shown[place : place + _AT_ONCE]
        chart = on.draw.choice(("reward", "criteria", "\x00", "é"))
        paths = [route.path.replace("{chart}", quote(chart)).replace("{file}", "copy.js") for route in some]
        await on.at_once(*(on.send("GET", f"{path}?{hostile_query(on)[:7000]}") for path in paths))


async def hostile_forms(on: Target) -> None:
    """Send every form with hostile text in all fields, some as large as a form may be, a few at a time."""
    token = await token_of(on, "/console/runs")
    sent = list(pages("POST"))
    on.draw.shuffle(sent)

    def body() -> bytes:
        size = on.draw.choice((2**10, 2**14, 2**18, _LARGEST_FORM - 2**16))
        unit = on.draw.choice(UNITS).encode("utf-8", "surrogatepass")
        some = on.draw.sample(form_fields(), on.draw.choice((1, 6, len(form_fields()))))
        text = unit * max(1, size // len(some) // len(urlencode({"": unit})))
        return urlencode({"token": token} | dict.fromkeys(some, text)).encode()

    for place in range(0, len(sent), 3):
        paths = [route.path for route in sent[place : place + 3]]
        await on.at_once(*(on.send("POST", path, body=body(), headers={"Content-Type": URLENCODED}) for path in paths))


async def playground(on: Target) -> None:
    """Have the playground judge: many responses, conversations as JSON, rubrics that take long to read."""
    token = await token_of(on, "/console/playground")
    unit = on.draw.choice(("### Step 1: a\n", "a ", "\\boxed{", "<think>", "```\n", "[", "{"))
    yaml = on.draw.choice(
        (
            "criteria:\n" + "".join(f"  - id: c{n}\n    description: d\n" for n in range(500)),
            "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a, *a]\n" for n in range(3000)),
            "[" * 100_000,
            "- " * 100_000,
            "? " * 100_000,
            "criteria:\n  - id: a\n    description: " + '"\\' * 100_000,
            "criteria:\n  - id: a\n    description: d\n    verification: {method: regex, pattern: '(a+)+$'}\n",
            json.dumps({"criteria": [criterion(f"c{n}", unit * 500) for n in range(25)]}),
        )
    )
    messages = json.dumps([{"role": "assistant", "content": unit * 50}] * on.draw.choice((1, 2000)))
    answers = on.draw.choice(([unit * 100_000], [messages], ["a"] * 1900, ["[" * 900_000], [unit * 20_000] * 10))
    form = {"token": token, "prompt": unit * 100, "rubric_text": yaml, "response": answers}
    form |= {"mode": on.draw.choice(("weighted_mean", "stepwise", "points")), "deadline_s": "20", "rationale": "1"}
    body = urlencode(form, doseq=True).encode()
    await on.at_once(
        *(on.send("POST", "/console/playground", body=body, headers={"Content-Type": URLENCODED}) for _ in range(2))
    )


async def imports(on: Target) -> None:
    """Import rubric files beyond the bounds of multipart forms and of the readers of every format."""
    token = await token_of(on, "/console/rubrics")
    row = json.dumps({"prompt": "p", "rubric": [{"criterion": "a", "points": 1}]})
    content = on.draw.choice(
        (
            (row + "\n").encode() * 3000,
            b"criteria:\n" + b"  - id: a\n    description: d\n" * 8000,
            b"---\ncriteria: [{id: a, description: d}]\n" * 600,
            b"[" * 250_000,
            b"a,b\n" + b'"' * 250_000,
            b"score 1: a\n" * 20_000,
            b"Points: 1, Item: " + b"*" * 250_000,
            b"# " * 120_000,
            b"{{" * 120_000,
            b"<a>" * 80_000,
            b"\x00" * 250_000,
            b"a" * (5 * 2**20),
        )
    )
    sending = []
    for path in ("/console/rubrics/import", "/console/rubrics/import", "/console/rubric/discriminate"):
        kind, body = multipart(on, token, content)
        sending.append(on.send("POST", path, body=body, headers={"Content-Type": kind, "X-Form-Token": token}))
    await on.at_once(*sending)


async def versions_and_searches(on: Target) -> None:
    """Publish two versions without a word in common, compare and preview them, and search for text in all."""
    token, name = await token_of(on, "/console/rubrics"), f"console/{on.draw.randint(0, 50)}"
    lines = on.draw.choice((1, 12))
    for half in ("a", "b"):
        texts = [" ".join(f"{half}{on.draw.getrandbits(20)}" for _ in range(2000))[:19_000] for _ in range(lines)]
        body = {"criteria": [criterion(f"c{n}", text) for n, text in enumerate(texts)]}
        await on.send("POST", f"/v1/rubrics/{name}/versions", json=body)
    text = "criteria:\n" + "".join(
        f"  - id: c{n}\n    description: {on.draw.choice('ab')}{'x y ' * 4000}\n" for n in range(lines)
    )
    preview = urlencode({"token": token, "name": name, "text": text, "parent": f"{name}@1"}).encode()
    asked = quote(on.draw.choice(_HOSTILE).encode("utf-8", "replace")[:1900])
    await on.at_once(
        on.send("GET", f"/console/rubric/compare?name={name}&from=1&to=2"),
        on.send("GET", f"/v1/rubrics/{name}/diff?from=1&to=2"),
        on.send("GET", f"/console/rubric?reference={name}@2"),
        on.send("POST", "/console/rubric/preview", body=preview, headers={"Content-Type": URLENCODED}),
        *(on.send("GET", f"/console/{page}?q={asked}") for page in ("rubrics", "runs")),
        on.send("GET", f"/v1/rubrics?text={asked}"),
        on.send("GET", f"/v1/runs?text={asked}"),
        on.send("GET", f"/console/ledger?run=attack&criterion={asked}&outcome=passed"),
        on.send("GET", "/console/labels/queue?run=attack"),
        on.send("GET", f"/console/responses?run=attack&criterion={asked}"),
    )


CONSOLE: dict[str, Attack] = {
    "console: sign-in without a key": sign_in,
    "console: pages without a session": without_session,
    "console: hostile parameters": hostile_pages,
    "console: hostile forms to 4 MB": hostile_forms,
    "console: playground": playground,
    "console: imports": imports,
    "console: versions and searches": versions_and_searches,
}
