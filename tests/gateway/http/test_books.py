"""Each request is entered in the books once, on every path."""

import pytest

from config.settings import InspectorConfig
from gateway.answers.call import Call
from gateway.http.books import Activity, Asking, Books
from gateway.http.inspector import Inspector
from gateway.http.metrics import Metrics
from gateway.http.request_record import RequestRecord
from gateway.http.standing import RequestReport
from gateway.keys.access import ADMIN
from gateway.keys.limits import Limiter
from gateway.terms.tasks import WorkerThreads

pytestmark = pytest.mark.anyio


async def test_a_request_is_reported_once_whatever_happens() -> None:
    reports: list[RequestReport] = []

    def answer(error: BaseException | None) -> None:
        inspector = Inspector(InspectorConfig())
        books = Books(reports.append, Metrics().gaps, Activity(), Limiter(), inspector)
        record = RequestRecord("r")
        record.asks("chat", "a", "a", ADMIN)
        asking = Asking(
            call=Call(request=None, access=ADMIN),
            books=books,
            record=record,
            readable=lambda error: error,
            quiet=1.0,
            threads=WorkerThreads(),
        )
        with asking.kept():
            if error is not None:
                raise error

    answer(None)
    for error in (KeyboardInterrupt(), ValueError()):
        with pytest.raises(type(error)):
            answer(error)
    assert [report.standing.outcome for report in reports] == ["ok", "left", "internal_error"]
