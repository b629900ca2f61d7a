"""The dashboard: pages for operators, served by every node's `admin` listener.

`static/` has the pages: plain HTML, CSS and ES modules, with no build step. They send the requests of the command line
(`node.admin_api`). static/README.md describes the modules and how to add a page.
"""
