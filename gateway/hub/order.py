"""What is to be downloaded, what the hub has, and how far it is. Sizes are bytes."""

from fnmatch import fnmatch

import msgspec


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One repository, or what `include` leaves of it after `exclude` (patterns of file names)."""

    repository: str  # "owner/name"
    revision: str | None = None  # None: the main branch
    folder: str | None = None  # name of the folder to make; None: the repository's own
    token: str | None = None  # None: the one that the hub's tools have stored, if any
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the repository is left out."""
        return self.include == ("*",) and not self.exclude

    def wants(self, file: str) -> bool:
        """Whether `file` is to be fetched."""
        included = any(fnmatch(file, pattern) for pattern in self.include)
        return included and not any(fnmatch(file, pattern) for pattern in self.exclude)

    def __repr__(self) -> str:
        """All but the token, since representations end in logs."""
        return f"Order({self.repository!r}, revision={self.revision!r})"


class RemoteFile(msgspec.Struct, frozen=True):
    """One file of a repository. `sha256`: of large files the hub knows it."""

    name: str
    size: int
    url: str
    sha256: str | None = None


class Listing(msgspec.Struct, frozen=True):
    """A repository at one commit; `headers` are those to ask for its files with."""

    commit: str
    files: tuple[RemoteFile, ...]
    headers: dict[str, str]


class DownloadProgress(msgspec.Struct, frozen=True):
    """How far a download is, over all files."""

    file: str
    done: int
    total: int
