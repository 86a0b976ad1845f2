"""Each request is entered in the books once, on every path."""

import pytest

from config.settings import InspectorConfig
from gateway.http.books import Account, Activity, Books
from gateway.http.inspector import Inspector
from gateway.http.metrics import Metrics
from gateway.http.request_record import RequestRecord
from gateway.http.standing import RequestReport
from gateway.keys.access import ADMIN
from gateway.keys.limits import Limiter

pytestmark = pytest.mark.anyio


async def test_an_account_is_reported_once_whatever_happens() -> None:
    reports: list[RequestReport] = []

    def answer(error: BaseException | None) -> None:
        inspector = Inspector(InspectorConfig())
        books = Books(reports.append, Metrics().gaps, Activity(), Limiter(), inspector)
        record = RequestRecord("r")
        record.asks("chat", "a", "a", ADMIN)
        with Account(books, record).kept(0):
            if error is not None:
                raise error

    answer(None)
    for error in (KeyboardInterrupt(), ValueError()):
        with pytest.raises(type(error)):
            answer(error)
    assert [report.standing.outcome for report in reports] == ["ok", "left", "internal_error"]
