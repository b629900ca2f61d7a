"""The command line, `isthmus NOUN VERB`: one module for each noun, imported when it is used.

Commands send requests to a node's admin listener (`admin_client`); changes share `admin_act`, listings are declared as
`output.TableSpec`. Must not import `node.demo`, which `main` finds by name. Start at `main`, which lists the nouns.
"""
