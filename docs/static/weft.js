// Browsers do not let a page that is opened from disk fetch others, so there the results of a search have no excerpts.
DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol !== "file:";
