"""The equality grid: exporters x weight formats x layouts x prefill recipes, every cell with an ending."""
