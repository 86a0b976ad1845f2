"""A module's tests are found at its place under tests/, by its name.

The tests of `gateway/http/sse.py` are `tests/gateway/http/test_sse.py`, or `test_sse_THIS.py` and
`test_sse_THAT.py` where one file would be long; those of a package as a whole bear its name. What
no module keeps alone is a promise and lies in a folder `promises`; what needs a special machine, or
real weights, lies in the folder of that name. Which modules have tests of their own is each room's
to say: many are tried through what they are for. But no room is without.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("config", "backends", "gateway")
PACKAGES = (*PRODUCT, "benchmarks", "bundled", "training")
MACHINES = {"browser", "cardless", "device", "gpu", "real"}
OF_THE_REPOSITORY = {"docs", "install", "mirror", "package", "readme", "repository"}

Module = tuple[str, ...]


def modules(*packages: str, of: Path = ROOT) -> set[Module]:
    """Modules and packages, by the parts of their dotted names."""
    paths = (path for package in packages for path in (of / package).rglob("*.py"))
    names = (path.relative_to(of).with_suffix("").parts for path in paths)
    return {name[:-1] if name[-1] == "__init__" else name for name in names}


def is_module(name: Module) -> bool:
    """Whether a file has that name, and no folder."""
    return ROOT.joinpath(*name).with_suffix(".py").is_file()


def files_of_tests() -> list[Path]:
    """Where test modules stand, from `tests/`."""
    return [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]


def tables() -> set[Module]:
    """The modules that a table of cases in their place bears the name of."""
    paths = (ROOT / "tests").rglob("*.jsonl")
    return {path.relative_to(ROOT / "tests").with_suffix("").parts for path in paths}


def may_test(test: Path) -> Iterator[Module]:
    """The modules that a test's place and name can mean, the longest name first."""
    folder, words = test.parent.parts, test.stem.split("_")[1:]
    for length in range(len(words), 0, -1):
        name = "_".join(words[:length])
        yield (*folder, name)
        if folder and folder[-1] == name:
            yield folder


def test_every_test_stands_where_its_module_would_be_looked_for() -> None:
    known = modules(*PACKAGES) | modules(".", of=ROOT / "tests")
    known |= {module[:length] for module in known for length in range(1, len(module))}
    lost = [
        str(test)
        for test in files_of_tests()
        if not known.intersection(may_test(test))
        and "promises" not in test.parts
        and test.parts[0] not in MACHINES
        and not (len(test.parts) == 1 and test.stem.removeprefix("test_") in OF_THE_REPOSITORY)
    ]
    assert not lost


def test_every_room_has_tests_of_its_own() -> None:
    """By the name of one of its modules, or by its own."""
    product = {name for name in modules(*PRODUCT) if is_module(name)}
    rooms = {name[:-1] for name in product}
    meant = {module for test in files_of_tests() for module in may_test(test)} | tables()
    tested = {module if module in rooms else module[:-1] for module in meant & (rooms | product)}
    assert not rooms - tested
