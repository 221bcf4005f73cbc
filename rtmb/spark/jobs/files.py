"""Files as Spark sees them: a path may be of this machine, of HDFS or of a bucket."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession


class Folder:
    """A folder on whatever file system its path names. Names in it are relative, with slashes."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        context: Any = spark.sparkContext._jsc
        self._new: Any = jvm.org.apache.hadoop.fs.Path
        given = self._new(path)
        self._system: Any = given.getFileSystem(context.hadoopConfiguration())
        #: The path in full, so that names below it can be told from it.
        self._root: Any = self._system.makeQualified(given)
        self._jvm = jvm
        self.path = str(self._root.toString())

    @property
    def name(self) -> str:
        """Its own name, without what is above it."""
        return self.path.rstrip("/").rpartition("/")[2]

    def _at(self, name: str) -> Any:
        return self._new(self._root, name) if name else self._root

    def full(self, name: str) -> str:
        return str(self._at(name).toString())

    def exists(self, name: str = "") -> bool:
        return bool(self._system.exists(self._at(name)))

    def names(self, name: str = "") -> list[str]:
        """Names of what is directly in a folder; none where there is no such folder."""
        if not self.exists(name):
            return []
        return sorted(str(s.getPath().getName()) for s in self._system.listStatus(self._at(name)))

    def modified(self, name: str) -> float:
        """When a file was written, in seconds since 1970."""
        return float(self._system.getFileStatus(self._at(name)).getModificationTime()) / 1000

    def walk(self, name: str = "") -> list[str]:
        """Names of the files below a folder, relative to this one."""
        if not self.exists(name):
            return []
        found = []
        statuses = self._system.listFiles(self._at(name), True)
        while statuses.hasNext():
            found.append(self.relative(str(statuses.next().getPath().toString())))
        return sorted(found)

    def relative(self, path: str) -> str:
        """The name in this folder of a file given in full. `file:///a` and `file:/a` are one."""
        whole, root = (str(p.toUri().getPath()) for p in (self._new(path), self._root))
        return whole.removeprefix(root.rstrip("/") + "/")

    def read(self, name: str) -> str:
        stream = self._system.open(self._at(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file whole or not at all: under another name first. The file must be new."""
        draft = self._at(f"_draft-{uuid4()}")
        stream = self._system.create(draft)
        stream.write(text.encode())
        stream.close()
        target = self._at(name)
        self._system.mkdirs(target.getParent())
        if self._system.exists(target) or not self._system.rename(draft, target):
            self._system.delete(draft, False)
            raise FileExistsError(self.full(name))

    def delete(self, name: str) -> None:
        self._system.delete(self._at(name), True)
