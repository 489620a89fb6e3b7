# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The page as a marimo app: it says when to draw again, `view` says what."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="scaledot")


@app.cell
def _():
    import marimo as mo

    from scaledot.lesson.page import view

    return mo, view


@app.cell
def _(mo):
    get_turn, set_turn = mo.state(0)
    get_start, set_start = mo.state(0, allow_self_loops=True)
    return get_start, get_turn, set_start, set_turn


@app.cell
def _(get_start, mo, set_start, set_turn, view):
    request = mo.app_meta().request
    page = view.open_page(
        dict(request.meta) if request is not None else {},
        mo.query_params(),
        changed=lambda: set_turn(lambda turn: turn + 1),
        restart=lambda: set_start(lambda start: start + 1),
        n_starts=get_start(),
    )
    return (page,)


@app.cell
def _(get_turn, mo, page):
    get_turn()
    mo.Html(page.html())
    return


if __name__ == "__main__":
    app.run()
