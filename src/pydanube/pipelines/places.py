"""Where the parts of a pipeline's file stand, so that a mistake names its line. Pure."""

from pydanube.pipelines.errors import Problem

Path = tuple[str | int, ...]


class Places:
    """Where the parts of a file stand."""

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.lines: dict[Path, int] = {}

    def problem(self, path: Path, message: str) -> Problem:
        """Return a mistake, at the line of its path or of the nearest part around it."""
        line = None
        for length in range(len(path), -1, -1):
            if (line := self.lines.get(path[:length])) is not None:
                break
        return Problem(file=self.file, line=line, key=key_of(path), message=message)


def key_of(path: Path) -> str:
    """Write a path as people do: `steps[2].expect[0].check`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"
