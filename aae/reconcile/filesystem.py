"""Directories that are not of this machine (`hdfs://`, `s3a://`), through the file systems that Spark's Java knows.

Small documents only, whole: what Spark itself reads and writes there is its own affair.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from isthmus.repl.model.errors import LocalFault


def is_store(path: str) -> bool:
    """Whether a path is such a directory's."""
    return "://" in path


class RunFileSystem:
    """One directory. Its methods raise LocalFault when the file system is unknown, or does not do what it is asked."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url.rstrip("/")
        self._spark = spark

    def has(self, name: str) -> bool:
        """Whether there is a file, or a directory, of that name below."""
        return bool(self._asked(name, lambda files, path: files.exists(path)))

    def is_empty(self) -> bool:
        """Whether there is nothing at all."""
        return not self._asked("", lambda files, path: files.exists(path) and len(files.listStatus(path)) > 0)

    def read(self, name: str) -> str | None:
        """The text of a file; None when there is none."""
        return self._asked(name, self._text) if self.has(name) else None

    def write(self, name: str, text: str) -> None:
        """Put a file there."""

        def put(files: Any, path: Any) -> None:
            out = files.create(path, True)
            out.write(bytearray(text.encode()))
            out.close()

        self._asked(name, put)

    def _text(self, files: Any, path: Any) -> str:
        stream = files.open(path)
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    @property
    def _java(self) -> Any:
        """PySpark has no other door to Hadoop's file systems."""
        return self._spark._jvm

    def _asked(self, name: str, ask: Any) -> Any:
        where = f"{self.url}/{name}" if name else self.url
        try:
            path = self._java.org.apache.hadoop.fs.Path(where)
            configuration = self._spark._jsc.hadoopConfiguration()
            return ask(path.getFileSystem(configuration), path)
        except Py4JJavaError as error:
            raise LocalFault(f"{where}: {str(error.java_exception).splitlines()[0][:300]}") from error
        except Py4JError as error:
            raise LocalFault(f"{where}: {str(error).splitlines()[0][:300]}") from error
