"""HTTP routes for operators, on the admin listener.

Must not import `client_api` or `daemon`; handlers take the components from `services`. Start at `application`.
"""
