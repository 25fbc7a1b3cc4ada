//! A table of text, shown as aligned columns or as Markdown.

/// Rows of equal length under a header. The first column is text, the others are numbers.
pub struct Table {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(header: &[&str]) -> Self {
        Table { header: header.iter().map(|name| name.to_string()).collect(), rows: vec![] }
    }

    fn widths(&self) -> Vec<usize> {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        (0..self.header.len()).map(|i| lines().map(|line| line[i].chars().count()).max().unwrap_or(0)).collect()
    }

    fn aligned_line(&self, line: &[String], widths: &[usize]) -> Vec<String> {
        let pad = |(i, cell): (usize, &String)| match i {
            0 => format!("{cell:<0$}", widths[i]),
            _ => format!("{cell:>0$}", widths[i]),
        };
        line.iter().enumerate().map(pad).collect()
    }

    /// Columns two spaces apart under a rule.
    pub fn plain(&self) -> String {
        let widths = self.widths();
        let rule = vec!["-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1))];
        let line = |cells: &Vec<String>| self.aligned_line(cells, &widths);
        let lines = [line(&self.header), rule].into_iter().chain(self.rows.iter().map(line));
        lines.map(|cells| cells.join("  ").trim_end().to_string() + "\n").collect()
    }

    pub(crate) fn markdown(&self) -> String {
        // A bar within a cell would end it.
        let escaped = |cells: &Vec<String>| cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let escaped = Table { header: escaped(&self.header), rows: self.rows.iter().map(escaped).collect() };
        escaped.markdown_as_is()
    }

    fn markdown_as_is(&self) -> String {
        let widths = self.widths();
        let rule = widths.iter().enumerate().map(|(i, &width)| match i {
            0 => "-".repeat(width),
            _ => "-".repeat(width.max(2) - 1) + ":",
        });
        let lines = [self.aligned_line(&self.header, &widths), rule.collect()];
        let rows = self.rows.iter().map(|row| self.aligned_line(row, &widths));
        lines.into_iter().chain(rows).map(|cells| format!("| {} |\n", cells.join(" | "))).collect()
    }
}
