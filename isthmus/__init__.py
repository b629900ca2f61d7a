"""Isthmus: keep the same data equal in two or more key-value clusters, and prove it.

Everything is imported from here: `isthmus.repl`, `isthmus.config` and so on. In a checkout the packages are links
to the folders beside this one; the wheel holds them as folders. Start reading at `isthmus.node.daemon`.

`isthmus.client` is a distribution of its own, without this file. It is found wherever on the path it is installed.
"""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)
