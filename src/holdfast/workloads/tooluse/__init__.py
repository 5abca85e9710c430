"""Tool tasks for small models: four tools, and questions that need one, several or none of them.

`tools` (the world), `tasks` (what is asked, splits and dials), `dialogues` (demonstrations), `agent` and
`score`. All but the last two need numpy only.
"""
