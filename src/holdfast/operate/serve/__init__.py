"""The control room over HTTP: who gets in, pages, questions, orders, events, and the documented endpoints."""
