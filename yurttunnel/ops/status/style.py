"""The style of the status page, and its icon."""

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E"
    "%3Cpath d='M3 27V16a13 13 0 0 1 26 0v11h-6V16a7 7 0 0 0-14 0v11z' fill='%23146c94'/%3E"
    "%3C/svg%3E"
)
"""A tunnel, as a data URL."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f7f7f5; --panel: #fff; --ink: #1b1f24; --soft: #59616b; --line: #e2e3e0;
  --accent: #146c94; --ok: #1a6b3c; --warn: #8a5300; --bad: #b3261e;
  --text: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans",
    "Liberation Sans", sans-serif;
  --code: ui-monospace, SFMono-Regular, "Cascadia Mono", "DejaVu Sans Mono", Menlo, monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --panel: #1b1f23; --ink: #e7e9ea; --soft: #a0a8b0; --line: #2d3339;
    --accent: #6bb8da; --ok: #74c794; --warn: #e6b35c; --bad: #ff9489;
  }
}
*, *::before, *::after { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 1360px; padding: 28px 32px 48px;
  background: var(--page); color: var(--ink);
  font: 15px/1.5 var(--text); font-variant-numeric: tabular-nums; font-kerning: normal;
}
h1, h2, h3, h4, p, ul, dl, dd { margin: 0; padding: 0; }
h1 { font-size: 24px; line-height: 1.2; font-weight: 650; letter-spacing: -0.015em; }
h2 { font-size: 17px; line-height: 1.3; font-weight: 620; letter-spacing: -0.005em; }
h3 { font-size: 15px; font-weight: 600; margin: 16px 0 6px; }
h4 { font-size: 13px; font-weight: 600; color: var(--soft); margin: 12px 0 4px; }
a { color: var(--accent); text-underline-offset: 0.15em; }
small { font-size: 12.5px; color: var(--soft); font-weight: 400; }
header { display: flex; flex-wrap: wrap; justify-content: space-between;
  align-items: flex-start; gap: 16px; }
.facts { color: var(--soft); margin-top: 4px; }
.live { display: flex; align-items: center; gap: 12px; white-space: nowrap; }
button, input {
  font: inherit; color: inherit; background: var(--panel);
  border: 1px solid var(--soft); border-radius: 6px; padding: 4px 12px; min-height: 34px;
}
button { cursor: pointer; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
[hidden] { display: none; }
section { margin-top: 32px; }
section > h2 { margin-bottom: 10px; }
.count { color: var(--soft); font-weight: 400; font-size: 15px; }
.nothing { color: var(--soft); }

/* Colour never stands alone: each kind has a sign of its own. */
.mark { white-space: nowrap; font-weight: 550; }
.mark::before { margin-right: 0.4em; }
.ok { color: var(--ok); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.ok::before { content: "\\2713" / ""; }
.warn::before { content: "\\25B2" / ""; font-size: 0.8em; }
.bad::before { content: "\\2715" / ""; }

#readiness { margin-top: 20px; padding: 14px 18px; background: var(--panel);
  border: 1px solid var(--line); border-radius: 10px; }
#readiness h2 { margin-bottom: 4px; }
.checks { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 22px; font-size: 14px; }
.checks .ok { color: var(--soft); font-weight: 400; }
.checks .ok::before { color: var(--ok); }
.checks .problem { flex-basis: 100%; order: -1; overflow-wrap: anywhere; }

#overview { margin-top: 12px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.tiles div { background: var(--panel); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 16px; display: flex; flex-direction: column; min-height: 92px; }
.tiles dt { order: 2; font-size: 13px; color: var(--soft); }
.tiles dd { font-size: 22px; line-height: 1.25; font-weight: 600; letter-spacing: -0.01em; }
.tiles .more { order: 3; margin-top: auto; font-size: 13px; font-weight: 400; color: var(--soft);
  letter-spacing: 0; }
.tiles .spark { width: 100%; height: 26px; margin-top: 6px; }

form { margin-top: 28px; display: flex; flex-wrap: wrap; align-items: center; gap: 8px 10px; }
form label { color: var(--soft); }
form input { width: min(320px, 100%); }

table { width: 100%; border-collapse: separate; border-spacing: 0; background: var(--panel);
  font-size: 14px; border: 1px solid var(--line); border-radius: 10px; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { padding: 8px 14px; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
thead th { font: 500 12.5px/1.5 var(--text); color: var(--soft); white-space: nowrap;
  overflow-wrap: normal; }
tbody th, tbody td { border-top: 1px solid var(--line); }
tbody th { font-weight: 600; }
td small, th small { display: block; }
.number { text-align: right; white-space: nowrap; overflow-wrap: normal; }
td time, th time { white-space: nowrap; }
.text { font-weight: 400; min-width: 16em; }
tbody .code { font-family: var(--code); font-size: 13px; font-weight: 400; }
.pairs th { width: 14em; font-weight: 500; color: var(--soft); }
.pairs .mark { white-space: normal; }
.pairs tr:first-child > * { border-top: 0; }
.spark { display: block; width: 160px; height: 24px; border-bottom: 1px solid var(--line); }
.spark path { stroke: var(--accent); stroke-width: 0.7; }
.spark + small { margin-top: 3px; }
footer ul { list-style: none; }
#destinations ul { background: var(--panel); border: 1px solid var(--line); border-radius: 10px;
  padding: 10px 14px 10px 34px; font-size: 14px; overflow-wrap: anywhere; }
footer { margin-top: 40px; padding-top: 20px; border-top: 1px solid var(--line);
  color: var(--soft); font-size: 14px; }
footer h2 { font-size: 15px; color: var(--ink); margin-bottom: 6px; }

@media (max-width: 1100px) {
  body { padding: 20px 16px 40px; }
  h1 { font-size: 20px; }
  .facts { font-size: 14px; }
  .tiles { grid-template-columns: repeat(auto-fit, minmax(136px, 1fr)); gap: 8px; }
  .tiles div { min-height: 0; padding: 10px 14px; }
  .tiles dd { font-size: 19px; }
  form label { flex-basis: 100%; }
  form input { flex: 1; min-width: 0; }
  .mark, .number, td time, th time { white-space: normal; overflow-wrap: anywhere; }
  table, tbody, tr, th, td { display: block; }
  table { background: none; border: 0; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  tbody tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(108px, 1fr));
    gap: 8px 16px; padding: 12px 14px; margin-bottom: 8px; background: var(--panel);
    border: 1px solid var(--line); border-radius: 10px; }
  th, td { padding: 0; text-align: left; min-width: 0; }
  tbody th, tbody td { border: 0; }
  tbody th, .text { grid-column: 1 / -1; }
  .chart { grid-column: span 2; }
  td[data-label]::before { content: attr(data-label); display: block; font-size: 12.5px;
    font-family: var(--text); color: var(--soft); }
  .number { text-align: left; }
  .spark { width: 100%; max-width: 300px; }
  .pairs tbody tr { margin: 0; border-radius: 0; grid-template-columns: 9em 1fr; border-bottom: 0; }
  .pairs tbody tr:last-child { border-bottom: 1px solid var(--line); }
  .pairs tbody th { width: auto; grid-column: auto; }
}
@media print {
  body { background: none; max-width: none; padding: 0; font-size: 11pt; }
  form, .live, footer { display: none; }
  tr { break-inside: avoid; }
}
"""
"""No font, image or colour from elsewhere; it stands in the page, allowed by its hash."""
