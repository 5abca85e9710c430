"""Tool tasks for small models: four tools, and questions that need one, several or none of them.

`tools` (the world), `templates` and `forms` (what is asked), `tasks` (splits and dials), `dialogues` (demonstrations),
`agent` and `score`. All but the last two run on a machine that has nothing but numpy.
"""
