"""Style of the report's page: light and dark by the reader's system, light on paper.

Words keep a contrast of 4.5 with their ground (WCAG AA), curves one of 3; tests/browser measures both.
"""

from spanjax.pages.plot import SERIES


def _series(dark: bool) -> str:
    lines = (f"--series-{number}: {colour[dark]};" for number, colour in enumerate(SERIES, start=1))
    return " ".join([*lines, f"--series-light: {68 if dark else 38}%;"])


STYLE = f"""
:root {{
  color-scheme: light;
  --page: #ffffff; --card: #ffffff; --text: #1c2128; --muted: #59636e; --line: #d9dee4; --faint: #eceff2; --soft: #f5f7f9;
  --good: #1a7034; --bad: #b42335; --random: #93306b; --truth: #dce9f8; --accent: #2b6cb0;
  {_series(False)}
}}
@media screen and (prefers-color-scheme: dark) {{
  :root {{
    color-scheme: dark;
    --page: #14171b; --card: #191d22; --text: #e3e7ec; --muted: #9ba6b2; --line: #343b44; --faint: #262c33; --soft: #1d2228;
    --good: #74c983; --bad: #f58a9b; --random: #e59ac8; --truth: #1f3a57; --accent: #7db4f0;
    {_series(True)}
  }}
}}
* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }}
body {{ margin: 0 auto; max-width: 76rem; padding: 2.5rem 1.5rem 5rem; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: anywhere; }}
h1 {{ margin: 0 0 1.25rem; font-size: .95rem; font-weight: 600; color: var(--muted); }}
h2 {{ margin: 3.25rem 0 1rem; font-size: 1.3rem; font-weight: 650; line-height: 1.3; letter-spacing: -.005em; }}
h3 {{ margin: 2rem 0 .75rem; font-size: 1.02rem; font-weight: 650; }}
p {{ margin: .75rem 0; max-width: 52rem; }}
.small {{ font-size: .86rem; color: var(--muted); }}
.headline {{ margin: 0 0 1.5rem; padding: 0; list-style: none; }}
.headline li {{ margin: 0 0 1.1rem; max-width: 52rem; font-size: 1.3rem; line-height: 1.35; letter-spacing: -.01em;
  text-wrap: balance; }}
.headline li:first-child {{ font-size: 1.75rem; line-height: 1.25; letter-spacing: -.015em; }}
.headline .small {{ display: block; margin-top: .35rem; font-size: .9rem; line-height: 1.5; letter-spacing: 0; text-wrap: wrap; }}
.value {{ font-weight: 700; font-variant-numeric: tabular-nums; }}
.wide {{ overflow-x: auto; margin: 1rem 0 1.25rem; }}
table {{ overflow-wrap: break-word; border-collapse: collapse; font-size: .9rem; line-height: 1.45;
  font-variant-numeric: tabular-nums; }}
.caption {{ margin: 1.5rem 0 -.5rem; font-size: .9rem; font-weight: 600; }}
th, td {{ padding: .42rem 1.1rem .42rem 0; border-bottom: 1px solid var(--faint); text-align: left; vertical-align: top; }}
th:last-child, td:last-child {{ padding-right: 0; }}
thead th {{ border-bottom: 1px solid var(--line); font-size: .84rem; font-weight: 600; color: var(--muted);
  vertical-align: bottom; }}
th.n, td.n {{ text-align: right; }}
tr > :first-child {{ min-width: 5.5rem; }}
tr > :first-child:has(code), tr > :first-child:has(.paper) {{ min-width: 12.5rem; }}
.whole {{ white-space: nowrap; }}
td.n {{ white-space: nowrap; }}
[title] {{ text-decoration: none; cursor: help; }}
code, .short {{ font: .88em/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .3rem 1.25rem; margin: .25rem 0 1rem; padding: 0; list-style: none;
  font-size: .86rem; color: var(--muted); }}
.legend li {{ display: flex; align-items: baseline; gap: .45rem; min-width: 0; overflow-wrap: anywhere; }}
.legend svg {{ flex: none; width: 22px; height: 10px; overflow: visible; }}
.figures {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21.5rem), 1fr)); gap: 1.25rem; }}
.figures.one {{ max-width: 32rem; }}
figure {{ margin: 0; padding: .9rem 1rem 1rem; min-width: 0; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; break-inside: avoid; }}
figcaption {{ margin: 0 0 .5rem; font-size: .92rem; font-weight: 600; line-height: 1.4; }}
figcaption code {{ font-weight: 400; color: var(--muted); }}
figure > svg {{ display: block; width: 100%; height: auto; }}
figure .legend {{ margin: .6rem 0 0; }}
figure .small {{ margin: .6rem 0 0; font-size: .8rem; }}
svg text {{ font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--muted);
  font-variant-numeric: tabular-nums; }}
svg .axis {{ stroke: var(--muted); opacity: .7; }}
svg .grid {{ stroke: var(--faint); }}
details {{ margin: .6rem 0; }}
summary {{ width: fit-content; cursor: pointer; color: var(--accent); }}
.sample {{ margin: 1.5rem 0 .75rem; padding: .8rem 1rem; max-width: none; background: var(--soft); border-radius: 8px;
  line-height: 1.75; }}
.truth {{ background: var(--truth); border-radius: 3px; padding: 0 .15em; }}
.right {{ color: var(--good); font-weight: 600; }}
.wrong, .mask {{ color: var(--bad); }}
.random {{ color: var(--random); }}
.kept {{ color: var(--good); }}
.boundary {{ border-bottom: 2px solid var(--accent); }}
.mark, .paper {{ color: var(--muted); }}
@media (max-width: 40rem) {{
  body {{ padding: 1.5rem 1rem 4rem; }}
  .headline li:first-child {{ font-size: 1.4rem; }}
  .headline li {{ font-size: 1.15rem; }}
  figure {{ padding: .75rem .75rem .8rem; }}
}}
@media print {{
  body {{ max-width: none; padding: 0; font-size: 10pt; }}
  .wide {{ overflow: visible; }}
  h2, h3 {{ break-after: avoid; }}
}}
"""
