"""The layout. Only colours of the terminal are used; what matters is also bold, reverse or in words."""

CSS = """
Screen { layout: vertical; overflow: hidden; }
#strip { height: auto; }
#link { height: auto; display: none; }
.stale #link { display: block; }
.bar { height: 1; text-style: reverse; text-wrap: nowrap; text-overflow: clip; }
.-low #map-bar { display: none; }
#map { height: auto; max-height: 25%; overflow-x: hidden; scrollbar-size: 0 1; scrollbar-gutter: stable; }
#running { height: auto; min-height: 2; max-height: 40%; }
#queue { height: 1fr; min-height: 3; }
JobTable {
    scrollbar-size: 0 1; scrollbar-gutter: stable; overflow-x: hidden;
    background: ansi_default; color: ansi_default;
}
JobTable > .datatable--header, JobTable:ansi > .datatable--header {
    background: ansi_default; color: ansi_default; text-style: bold underline;
}
JobTable > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: bold; }
JobTable:focus > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
JobTable > .datatable--hover { background: ansi_default; }
.-low #map { max-height: 3; }
.-low #running { max-height: 5; }
.stale JobTable, .stale #map, .stale #story { text-style: dim; }
#story { height: 1fr; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
#story Static { height: auto; padding: 0 1; }
#story .title { text-style: bold underline; padding: 0; margin-top: 1; }
#story .cut { text-wrap: nowrap; text-overflow: ellipsis; }
ModalScreen { align: center middle; }
.dialog {
    width: 64; max-width: 100%; height: auto; max-height: 100%;
    border: solid ansi_default; padding: 0 1; background: ansi_default;
}
OptionList { height: auto; max-height: 14; }
"""
