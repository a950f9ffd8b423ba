"""Client for repositories on the Hugging Face Hub, which turns all errors into one-line messages."""

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from hf_attnprobe.checkpoints.origins import summarize_error
from hf_attnprobe.core.errors import AttnProbeError


RepositoryType = Literal["model", "dataset"]
"""Types of repositories on the Hub that are created and updated."""
RETRY_ADVICE = "run the same command again"
"""Last words of the error messages for an interrupted upload."""


@dataclass(frozen=True)
class HubClient:
    """Hub client that reads and writes repositories, and raises all errors as `AttnProbeError`.

    Attributes:
        token: Token with write access; None for the token of ``hf auth login``.
        private: Whether new repositories are private.
    """

    token: str | None = field(default=None, repr=False)
    private: bool = False

    @property
    def api(self) -> HfApi:
        """Client of huggingface_hub."""
        return HfApi(token=self.token)

    def create_repository(self, repository: str, repository_type: RepositoryType) -> str:
        """Create a repository if it does not exist.

        Args:
            repository: Repository id.
            repository_type: "model" or "dataset".

        Returns:
            URL of the repository.

        Raises:
            AttnProbeError: The token has no write access, the organisation does not exist, or the
                network failed.
        """
        with _convert_hub_errors(repository, repository_type):
            url = self.api.create_repo(
                repository,
                repo_type=repository_type,
                # None does not change the visibility of an existing repository.
                private=self.private or None,
                exist_ok=True,
            )
        return str(url)

    def read_text(self, repository: str, repository_type: RepositoryType, path: str) -> str | None:
        """Read a text file of a repository.

        Args:
            repository: Repository id.
            repository_type: "model" or "dataset".
            path: File path within the repository.

        Returns:
            The text, or None if the file does not exist.

        Raises:
            AttnProbeError: See :meth:`create_repository`.
        """
        with _convert_hub_errors(repository, repository_type):
            try:
                local_file = self.api.hf_hub_download(repository, path, repo_type=repository_type)
            except (EntryNotFoundError, RepositoryNotFoundError):
                return None
            with Path(local_file).open(newline="", encoding="utf-8-sig") as text_file:
                return text_file.read()

    def list_paths(self, repository: str, repository_type: RepositoryType) -> list[str]:
        """List the paths of all files in a repository.

        Args:
            repository: Repository id.
            repository_type: "model" or "dataset".

        Raises:
            AttnProbeError: See :meth:`create_repository`.
        """
        with _convert_hub_errors(repository, repository_type):
            return self.api.list_repo_files(repository, repo_type=repository_type)

    def commit_files(
        self,
        repository: str,
        repository_type: RepositoryType,
        files: Mapping[str, Path | bytes],
        deleted_paths: Sequence[str] = (),
        message: str = "attnprobe card",
    ) -> None:
        """Upload and delete files in a single commit.

        Args:
            repository: Repository id.
            repository_type: "model" or "dataset".
            files: Local paths or contents, by path within the repository.
            deleted_paths: Paths of existing files to delete.
            message: Commit message.

        Raises:
            AttnProbeError: See :meth:`create_repository`.
        """
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(path, str(file) if isinstance(file, Path) else io.BytesIO(file))
            for path, file in files.items()
        ]
        operations += map(CommitOperationDelete, deleted_paths)
        with _convert_hub_errors(repository, repository_type):
            self.api.create_commit(
                repository,
                operations,
                repo_type=repository_type,
                commit_message=message,
            )


@contextlib.contextmanager
def _convert_hub_errors(repository: str, repository_type: RepositoryType) -> Iterator[None]:
    """Convert all errors in a ``with`` block to `AttnProbeError`, with a one-line explanation."""
    try:
        yield
    except Exception as error:
        raise AttnProbeError(
            f"cannot publish the {repository_type} {repository}: {_explain_hub_error(error)}"
        ) from error


def _explain_hub_error(error: Exception) -> str:
    """Return one line that describes the cause of a Hub error, and how to fix it."""
    if isinstance(error, OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set; unset it and {RETRY_ADVICE}"
    summary = summarize_error(error)
    if isinstance(error, HfHubHTTPError):
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if status in (401, 403):
            return (
                f"the token has no write access ({summary}). Use another token with --token or "
                "`hf auth login`."
            )
        if status == 404:
            return f"the organisation or repository does not exist ({summary}); correct ORG/NAME"
        return f"{constants.ENDPOINT} refused the request ({summary}); {RETRY_ADVICE}"
    return (
        f"the connection to {constants.ENDPOINT} failed ({type(error).__name__}: {summary}); "
        f"{RETRY_ADVICE}"
    )
