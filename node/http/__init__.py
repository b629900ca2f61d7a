"""The HTTP server: connections, requests, routing, authorization, errors as statuses.

Knows no route of the product; `client_api` and `admin_api` bring these. `connection` is the only module that
imports uvicorn. Start at `application`, then `router` and `responses`.
"""
