"""The REST interface: what it answers, what it refuses, and what it survives."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from threading import Event

from cases import each
from confide.errors import SettingsError
from confide.serve.app import ServedPages
from confide.serve.gate import CallerLimits, HttpError
from confide.serve.models import Served, model_names, openapi_document, padded_time
from confide.text.document import Document
from serve.served import ORIGIN, QUICK, annotate, browser, models

JSON = {"content-type": "application/json"}


def test_a_batch_comes_back_in_order_with_its_ids() -> None:
    body = {"texts": ["drug9", {"id": "b", "text": "no"}], "model": "ours"}
    found = browser().post("/v1/predict", json=body).json()
    assert found["model"] == "ours"
    assert [one["id"] for one in found["documents"]] == ["1", "b"]
    (entity,) = found["documents"][0]["entities"]
    assert entity == {"id": "T1", "type": "DRUG", "fragments": [[0, 5]], "confidence": 0.9}
    assert found["documents"][1]["entities"] == found["documents"][1]["relations"] == []


def test_the_first_model_answers_if_none_is_named() -> None:
    assert browser().post("/v1/predict", json={"texts": ["a"]}).json()["model"] == "ours"


@each(("threshold", "count"), [(0, 3), (0.3, 2), (0.31, 1), (1, 0)])
def test_a_threshold_drops_what_is_less_likely(threshold: float, count: int) -> None:
    body = {"texts": ["drug0 drug3 drug9"], "threshold": threshold}
    (found,) = browser().post("/v1/predict", json=body).json()["documents"]
    assert len(found["entities"]) == count


def wanting(documents: Sequence[Document], *, types: Sequence[str] | None = None) -> list[Document]:
    """Marks as `annotate`, if drugs are wanted; no other type is known."""
    if types is not None and set(types) != {"DRUG"}:
        raise SettingsError("the model does not find every wanted type")
    return annotate(documents) if types is None or "DRUG" in types else list(documents)


def test_types_that_are_wanted_reach_the_model_by_rest_and_on_the_page() -> None:
    there = browser(ServedPages({"ours": Served("ours", "entities", ("DRUG",), wanting, QUICK)}))
    assert (
        there.post("/v1/predict", json={"texts": ["drug9"], "types": ["DRUG"]}).status_code == 200
    )
    for types in (["PAIN"], ["DRUG", "PAIN"]):
        found = there.post("/v1/predict", json={"texts": ["drug9"], "types": types})
        assert found.status_code == 422 and "wanted type" in found.text and "PAIN" not in found.text
    for wrong in ([], "DRUG", [""], [1]):
        found = there.post("/v1/predict", json={"texts": ["drug9"], "types": wrong})
        assert found.status_code == 422
    asked = {"texts": [{"text": "drug9"}], "models": ["ours"]}
    headers = {"origin": ORIGIN}
    found = there.post("/pages/read", json={**asked, "types": ["DRUG"]}, headers=headers)
    assert found.json()["texts"][0]["found"]["ours"]["entities"]
    found = there.post("/pages/read", json={**asked, "types": ["PAIN"]}, headers=headers)
    assert found.status_code == 422


def test_lines_come_one_by_one() -> None:
    body = {"texts": [f"drug{n % 10}" for n in range(40)]}
    accept = {"accept": "application/x-ndjson"}
    with browser().stream("POST", "/v1/predict", json=body, headers=accept) as found:
        assert found.headers["content-type"].startswith("application/x-ndjson")
        rows = [json.loads(line) for line in found.iter_lines()]
    assert [row["id"] for row in rows] == [str(n) for n in range(1, 41)]
    assert all(len(row["entities"]) == 1 for row in rows)


def test_models_and_health() -> None:
    there = browser()
    assert there.get("/healthz").json()["status"] == "ok"
    first = there.get("/v1/models").json()["models"][0]
    assert first == {"name": "ours", "finds": "entities", "types": ["DRUG", "ADE"]}


@each(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"\xff", 400), (b"[" * 100_000, 400), (b"NaN", 400),
        (b'{"texts": ["a"], "threshold": NaN}', 400),
        (b"[]", 422), (b"{}", 422), (b'{"texts": []}', 422), (b'{"texts": "a"}', 422),
        (b'{"texts": [1]}', 422), (b'{"texts": ["a"], "more": 1}', 422),
        (b'{"texts": ["a"], "language": "ES"}', 422), (b'{"texts": ["a"], "language": "xx"}', 422),
        (b'{"texts": ["\\ud800"]}', 422), (b'{"texts": ["a"], "threshold": 2}', 422),
        (b'{"texts": ["a"], "model": "nope"}', 404),
        (b'{"texts": [{"text": "a", "entities": [{"type": "X", "start": 0, "end": 2}]}]}', 422),
        (b'{"texts": [{"text": "a", "entities": [{"type": "X", "start": 1, "end": 1}]}]}', 422),
        (b'{"texts": [{"text": "a", "entities": [{"type": "X Y", "start": 0, "end": 1}]}]}', 422),
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused(body: bytes, status: int) -> None:
    found = browser().post("/v1/predict", content=body, headers=JSON)
    assert found.status_code == status and found.json()["what"]


def test_a_refusal_never_repeats_the_caller() -> None:
    for body in ('{"CANARY": 1, "texts": ["a"]}', '{"texts": [{"text": "a", "CANARY": 1}]}',
                 '{"texts": ["a"], "model": "CANARY"}', '{"texts": {"CANARY": 1}}'):  # fmt: skip
        found = browser().post("/v1/predict", content=body, headers=JSON)
        assert found.status_code in (404, 422) and "CANARY" not in found.text


def test_sizes_are_limited() -> None:
    small = CallerLimits(characters=10, texts=2, pad=0)
    there = browser(ServedPages(models(small), limits=small))
    assert there.post("/v1/predict", json={"texts": ["a" * 10] * 2}).status_code == 200
    assert there.post("/v1/predict", json={"texts": ["a" * 11]}).status_code == 413
    assert there.post("/v1/predict", json={"texts": ["a"] * 3}).status_code == 413


def test_hundreds_of_bad_asks_are_survived() -> None:
    there, chance = browser(), random.Random(7)
    good = json.dumps({"texts": ["drug1", {"text": "x", "id": "i"}], "model": "ours"}).encode()
    for _ in range(300):
        raw = bytearray(good)
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(raw))
            raw[at : at + chance.randint(0, 4)] = chance.randbytes(chance.randint(0, 4))
        found = there.post("/v1/predict", content=bytes(raw), headers=JSON)
        assert found.status_code in (200, 400, 404, 413, 422)
    assert there.post("/v1/predict", content=good, headers=JSON).status_code == 200


def test_a_full_queue_is_refused_and_recovers() -> None:
    held = Event()

    def waits(documents):
        held.wait(10)
        return annotate(documents)

    async def main() -> None:
        model = Served("slow", "entities", (), waits, CallerLimits(waiting=2, pad=0))
        asks = [asyncio.create_task(model.predict([Document("1", "drug1")])) for _ in range(3)]
        done, _ = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
        (full,) = done
        assert isinstance(full.exception(), HttpError) and full.exception().status == 503
        held.set()
        await asyncio.gather(*(ask for ask in asks if ask is not full))
        assert model.waiting == 0
        assert await model.predict([Document("1", "drug1")])

    asyncio.run(main())


def test_a_long_ask_does_not_hold_up_a_short_one() -> None:
    def slow(documents):
        time.sleep(0.02 * len(documents))
        return annotate(documents)

    async def main() -> None:
        model = Served("slow", "entities", (), slow, QUICK)
        long = asyncio.create_task(model.predict([Document(str(n), "x") for n in range(60)]))
        await asyncio.sleep(0.05)
        await model.predict([Document("1", "x")])
        assert not long.done()
        await long

    asyncio.run(main())


def test_the_time_says_nothing_of_the_words() -> None:
    """Known and unknown words take different times, and are answered after the same."""

    def uneven(documents):
        time.sleep(0.001 if "known" in documents[0].text else 0.012)
        return annotate(documents)

    async def main() -> list[float]:
        model = Served("uneven", "entities", (), uneven, CallerLimits(pad=0.05))
        times = []
        for text in ("known", "other") * 5:
            start = time.perf_counter()
            await model.predict([Document("1", text)])
            times.append(time.perf_counter() - start)
        return times

    times = asyncio.run(main())
    assert min(times) >= 0.05
    assert min(times[::2]) < 0.1 and min(times[1::2]) < 0.1  # a busy machine may answer later


def test_a_longer_text_has_coarser_times() -> None:
    assert padded_time(0.001, pad=0.02, characters=2000) == padded_time(
        0.079, pad=0.02, characters=2000
    )
    assert padded_time(0.081, pad=0.02, characters=2000) == 0.16
    assert padded_time(0.5, pad=0.0, characters=10) == 0.5


def test_names_of_models_differ(tmp_path) -> None:
    (tmp_path / "a@b").mkdir()
    found = model_names(
        [str(tmp_path / "a@b"), "x/a", "y/a", "x/a@north", "x/ner+y/re", "x/\x1b[2J"]
    )
    assert list(found) == ["a@b", "a", "a-2", "a@north", "ner+re", "?[2J"]
    assert found["a@b"][1] is None and found["a@north"] == ("x/a", "north")


def test_the_openapi_document_describes_what_is_served() -> None:
    found = browser().get("/openapi.json").json()
    assert found == json.loads(json.dumps(openapi_document(list(models()), QUICK)))
    served = {"/v1/predict", "/v1/models", "/healthz"}
    assert set(found["paths"]) == served
    named_there = set(found["components"]["schemas"])
    refs = {ref.rsplit("/", 1)[1] for ref in _refs(found)}
    assert refs <= named_there and "GivenText" in refs
    assert found["components"]["schemas"]["Predict"]["properties"]["model"]["enum"][0] == "ours"


def _refs(tree):
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from [value] if key == "$ref" else _refs(value)
    elif isinstance(tree, list):
        for one in tree:
            yield from _refs(one)


def test_the_openapi_document_states_the_limits_and_the_range_of_confidences() -> None:
    schemas = browser().get("/openapi.json").json()["components"]["schemas"]
    texts = schemas["Predict"]["properties"]["texts"]
    assert (texts["minItems"], texts["maxItems"]) == (1, QUICK.texts)
    for kind in ("entities", "relations"):
        found = schemas["Document"]["properties"][kind]["items"]["properties"]["confidence"]
        assert (found["type"], found["minimum"], found["maximum"]) == ("number", 0, 1)
    spans = schemas["Document"]["properties"]["entities"]["items"]["properties"]["fragments"]
    assert (spans["items"]["minItems"], spans["items"]["maxItems"]) == (2, 2)
