"""A SPARK_HOME of links to the installed PySpark, whose Python processes find it compiled.

Spark has its Python processes import PySpark and Py4J from archives below SPARK_HOME, which hold
no compiled code: each new process compiles all that it imports. Here directories take the place
of the archives, under their names, and lead to the installed packages.
"""

import hashlib
import os
import threading
from pathlib import Path
from typing import NamedTuple

_PARTS = ("bin", "conf", "data", "examples", "jars", "licenses", "sbin", "python/pyspark")
"""What is taken as it is. `conf` is the user's and may come later: a link to nothing does no harm.

`logs` and `work` are no links: Spark makes them where it is told that its home is.
"""


class Installed(NamedTuple):
    """PySpark as it is installed."""

    pyspark: Path
    py4j: Path | None
    """The installed Py4J; None where it lies elsewhere."""
    py4j_archives: tuple[str, ...]
    """The names under which Spark looks for Py4J."""


def installed() -> Installed | None:
    """Return where PySpark and Py4J lie; None if there is no whole Spark among them."""
    try:
        import pyspark
    except ImportError:
        return None
    package = Path(pyspark.__file__).parent.resolve()
    # A distribution that was downloaded when PySpark was installed is preferred by PySpark.
    if not (package / "bin/spark-submit").is_file() or (package / "spark-distribution").exists():
        return None
    archives = tuple(sorted(each.name for each in (package / "python/lib").glob("py4j-*.zip")))
    # Not by import: a program that Spark has started may have found the archive.
    py4j = package.parent / "py4j"
    return Installed(package, py4j if py4j.is_dir() else None, archives)


def plan_links(found: Installed) -> dict[str, Path]:
    """Return what each link of a home leads to, by its path in the home."""
    links = {part: found.pyspark / part for part in _PARTS}
    links["python/lib/pyspark.zip/pyspark"] = found.pyspark
    for archive in found.py4j_archives:
        place = f"python/lib/{archive}"
        if found.py4j is None:
            links[place] = found.pyspark / place
        else:
            links[f"{place}/py4j"] = found.py4j
    return links


def linked_home(root: Path) -> Path | None:
    """Return the home below `root` for the installed PySpark, made or mended if need be.

    None if there can be none for this PySpark; OSError if it cannot be made here. Each link is put
    in its place at once, and other links belong into another home: several processes may do this at
    the same time, also while Spark runs from there.
    """
    found = installed()
    if found is None:
        return None
    links = plan_links(found)
    words = "\n".join(f"{place} {target}" for place, target in links.items())
    home = root.absolute() / "spark" / hashlib.sha256(os.fsencode(words)).hexdigest()[:16]
    for place, target in links.items():
        _link(home / place, str(target))
    return home


def is_home_of_package(home: Path) -> bool:
    """Tell whether a SPARK_HOME is the installed PySpark, directly or by links."""
    found = installed()
    return found is not None and (home / "jars").resolve() == found.pyspark / "jars"


def _link(place: Path, target: str) -> None:
    if place.is_symlink() and os.readlink(place) == target:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{place.name}.{os.getpid()}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(place)
