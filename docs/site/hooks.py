"""What mkdocs reads: files by their paths in the repository, so that links to README.md and to examples resolve in the site."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site.sources import sources, target


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's files and :func:`.sources.sources`, instead of all of ``docs/``."""
    root = Path(config.config_file_path).parent
    theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*theme, *(_file(path.relative_to(root).as_posix(), root, config) for path in sources(root))])


def _file(source: str, root: Path, config: MkDocsConfig) -> File:
    return File(source, str(root), config.site_dir, config.use_directory_urls, dest_uri=target(source))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page from its title on: mkdocs takes a title only from the first line, where generated pages have a comment."""
    return markdown[markdown.find("# ") :] if markdown.startswith("<!--") else markdown


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The page with a name for the theme's search dialog, for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)
