"""The command line, a file a noun; `node.cli.main` is its door and says how the others are found."""
