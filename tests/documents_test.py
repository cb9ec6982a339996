#!/usr/bin/env python3
"""Checks that documents tell the truth where a machine can see it: code, links, and the table of the layers."""
import pathlib
import re
import unittest

import layering

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "muster" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def lines_of(code: str) -> list[str]:
    return [line.strip() for line in code.splitlines() if line.strip()]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


class Documents(unittest.TestCase):
    def test_the_first_program_of_the_readme_is_the_example_that_is_built_and_run(self):
        blocks = re.findall(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

        self.assertIn((ROOT / "examples" / "first_program" / "first_program.cc").read_text(), blocks)

    def test_links_lead_to_files_that_exist(self):
        for document in DOCUMENTS:
            for target in re.findall(r"\]\(([^)#]+)[^)]*\)", without_code(document.read_text())):
                if "://" not in target:
                    with self.subTest(document=document.name, target=target):
                        self.assertTrue((document.parent / target).exists())

    def test_code_of_the_pages_about_examples_is_cut_from_the_program_that_they_name_first(self):
        for page in sorted((ROOT / "docs" / "examples").glob("*.md")):
            text = page.read_text()
            program = re.search(r"\]\(([^)]*\.cc)\)", text)
            self.assertIsNotNone(program, page.name)
            there = "\n".join(lines_of((page.parent / program.group(1)).read_text()))
            for block in re.findall(r"```cpp\n(.*?)```", text, re.DOTALL):
                with self.subTest(page=page.name, block=block):
                    self.assertIn("\n".join(lines_of(block)), there)

    def test_every_example_and_every_page_about_one_is_in_the_list_of_examples(self):
        text = (ROOT / "docs" / "examples.md").read_text()
        programs = [folder for folder in (ROOT / "examples").iterdir() if folder.is_dir()]
        self.assertTrue(programs)
        for folder in programs:
            self.assertIn(f"(../examples/{folder.name}/{folder.name}.cc)", text)
        for page in (ROOT / "docs" / "examples").glob("*.md"):
            self.assertIn(f"(examples/{page.name})", text)

    def test_every_folder_of_the_library_has_its_paragraph_and_its_first_file(self):
        text = (ROOT / "muster" / "README.md").read_text()
        for folder in sorted(path for path in (ROOT / "muster").iterdir() if path.is_dir()):
            with self.subTest(folder.name):
                found = re.search(rf"^\*\*{folder.name}/\*\*.*?\]\((\S+)\)", text, re.MULTILINE | re.DOTALL)
                self.assertIsNotNone(found)
                self.assertTrue(found.group(1).startswith(folder.name + "/"), found.group(1))

    def test_the_table_of_the_layers_is_the_one_that_is_enforced(self):
        text = (ROOT / "docs" / "architecture.md").read_text()
        rows = dict(re.findall(r"^\| `(\w+)` \| ([\w –]+?) \|", text, re.MULTILINE))
        for folder, allowed in layering.MAY_INCLUDE.items():
            if (ROOT / "muster" / folder).is_dir():
                with self.subTest(folder):
                    self.assertEqual(rows.get(folder), allowed or "–")


if __name__ == "__main__":
    unittest.main()
