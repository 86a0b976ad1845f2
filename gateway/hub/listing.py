"""What a repository of the hub holds, asked through huggingface_hub. Blocks; for a worker thread.

The library is optional and takes long to import, so that happens with the first question.
"""

from typing import Any

from gateway.errors import InvalidRequest, ModelUnavailable, NotFound
from gateway.hub.order import Listing, Order, RemoteFile


def listing(endpoint: str | None, order: Order) -> Listing:
    """The files that `order` wants.

    Raises NotFound where hub, repository or revision say no, InvalidRequest where nothing is left
    to fetch, ModelUnavailable where the hub can't be reached or the library is missing.
    """
    try:
        import huggingface_hub  # noqa: PLC0415 - optional, and slow to import
        from huggingface_hub import errors  # noqa: PLC0415
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined] # noqa: PLC0415
    except ImportError as error:
        raise ModelUnavailable(
            "downloads need huggingface_hub: pip install huggingface_hub"
        ) from error
    api = huggingface_hub.HfApi(endpoint=endpoint, token=order.token, library_name="roundhouse")
    try:
        info = api.model_info(order.repository, revision=order.revision, files_metadata=True)
    except errors.HFValidationError as error:
        raise InvalidRequest(f"repo_id: {error}", param="repo_id") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise NotFound(f"the hub has no {order.repository}: {error}", param="repo_id") from error
    except Exception as error:  # of whichever HTTP library huggingface_hub uses
        raise ModelUnavailable(f"the hub can't be asked: {error}") from error

    commit = info.sha
    if commit is None:
        raise ModelUnavailable(f"the hub names no commit of {order.repository}")

    def url(name: str) -> str:
        return str(
            huggingface_hub.hf_hub_url(order.repository, name, revision=commit, endpoint=endpoint)
        )

    wanted = (one for one in info.siblings or () if order.wants(one.rfilename))
    files = tuple(_file(one, url(one.rfilename)) for one in wanted if not _is_hidden(one.rfilename))
    if not files:
        text = f"include and exclude leave nothing of {order.repository}"
        raise InvalidRequest(text, param="include")
    return Listing(commit, files, build_hf_headers(token=order.token, library_name="roundhouse"))


def _is_hidden(name: str) -> bool:
    """Git's own files and such, which no model needs. What leads elsewhere is not merely hidden."""
    return any(part.startswith(".") and part != ".." for part in name.split("/"))


def _file(sibling: Any, url: str) -> RemoteFile:
    checksum = sibling.lfs.sha256 if sibling.lfs is not None else None
    return RemoteFile(sibling.rfilename, sibling.size or 0, url, checksum)
