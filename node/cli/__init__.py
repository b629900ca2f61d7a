"""The command line, `isthmus NOUN VERB`: one module for each noun, imported when it is used.

Commands send requests to a node's admin listener. One that changes something takes `admin_command.admin_act`; one that
only shows something takes `admin_command.admin_query`, and declares its table as `output.TableSpec`.
Must not import `node.demo`, which `main` finds by name. Start at `main`, which lists the nouns.
"""
