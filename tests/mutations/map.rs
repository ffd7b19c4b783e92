//! Where everything is in a good file.

use std::io::Cursor;
use std::ops::Range;

use onebit::state::{self, GgmlType, SectionKind};

/// A number that is part of the structure.
#[derive(Clone, Debug)]
pub struct Field {
    pub at: usize,
    /// 4 or 8 bytes.
    pub n_bytes: usize,
    pub what: &'static str,
    /// Fields of one kind and place in the file: chosen among first, so that the many cells leave the others their share.
    pub group: usize,
}

/// Rows of one tensor, and all of it: with the type and the row size in front.
#[derive(Clone, Debug)]
pub struct Block {
    pub all: Range<usize>,
    pub rows: Range<usize>,
    pub ty: GgmlType,
}

/// A file taken apart.
pub struct Map {
    pub fields: Vec<Field>,
    pub n_groups: usize,
    pub blocks: Vec<Block>,
    pub sections: Vec<Range<usize>>,
    pub cells: Vec<Range<usize>>,
    pub n_cell_bytes: Vec<usize>,
    pub body: usize,
    pub only_recurrent: bool,
}

impl Map {
    pub fn of(file: &[u8]) -> Self {
        let report = state::inspect(&mut Cursor::new(file), file.len() as u64, None).unwrap();
        assert!(report.problem.is_none(), "{:?}", report.problem);
        let body = usize::try_from(report.header.body_offset).unwrap();
        let mut walk = Walk { at: 0, fields: Vec::new(), group: 0 };
        for what in ["magic", "version", "token count"] {
            walk.field(what, 4);
        }
        walk.group += 1;
        report.header.ids.iter().for_each(|_| walk.field("id", 4));
        assert_eq!(walk.at, body);
        let (mut blocks, mut sections, mut cells, mut n_cell_bytes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for section in &report.sections {
            let start = walk.at;
            walk.group += 1;
            let attention = section.kind != SectionKind::Recurrent;
            if attention {
                walk.field("stream count", 4);
            }
            walk.field("cell count", 4);
            walk.group += 1;
            let first_cell = walk.at;
            for _ in 0..section.n_cells {
                walk.field("position", 4);
                walk.field("sequence id count", 4);
                if section.cell_ext_bytes > 0 {
                    ["x", "y", "tok"].into_iter().for_each(|what| walk.field(what, 4));
                }
                if attention {
                    walk.field("sequence id", 4);
                }
            }
            cells.push(first_cell..walk.at);
            n_cell_bytes.push((walk.at - first_cell) / section.n_cells as usize);
            walk.group += 1;
            walk.field(if attention { "V transposition" } else { "S transposition" }, 4);
            walk.field("layer count", 4);
            if attention {
                walk.field("n_rot_k", 4);
                walk.field("n_rot_v", 4);
            }
            walk.group += 1;
            for block in &section.blocks {
                let all = walk.at;
                walk.field("type", 4);
                walk.field("row size", 8);
                let row_bytes = usize::try_from(block.row.bytes).unwrap();
                let rows = walk.at..walk.at + row_bytes * section.n_cells as usize;
                walk.at = rows.end;
                blocks.push(Block { all: all..rows.end, rows, ty: block.row.ty });
            }
            sections.push(start..walk.at);
        }
        assert_eq!(walk.at, file.len());
        let only_recurrent = report.sections.iter().all(|section| section.kind == SectionKind::Recurrent);
        Self {
            fields: walk.fields,
            n_groups: walk.group + 1,
            blocks,
            sections,
            cells,
            n_cell_bytes,
            body,
            only_recurrent,
        }
    }

    /// Every place where something ends.
    pub fn boundaries(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.fields.iter().flat_map(|field| [field.at, field.at + field.n_bytes]).collect();
        all.extend(self.blocks.iter().flat_map(|block| [block.all.start, block.rows.start, block.rows.end]));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether a file means the same as the good one, though not byte by byte: the loader reads the sequence ids of cells and
    /// drops them, M-RoPE cells may leave their token out, and of a recurrent state versions 2 to 4 are written alike.
    pub fn is_equivalent(&self, good: &[u8], file: &[u8]) -> bool {
        if file.len() != good.len() {
            return false;
        }
        let mut file = file.to_vec();
        for field in &self.fields {
            let range = field.at..field.at + field.n_bytes;
            let ignored = match field.what {
                "sequence id" => true,
                "tok" => file[range.clone()] == (-1i32).to_le_bytes(),
                "version" => {
                    self.only_recurrent && [2u8, 3].map(|v| [v, 0, 0, 0]).iter().any(|v| file[range.clone()] == *v)
                }
                _ => false,
            };
            if ignored {
                file[range.clone()].copy_from_slice(&good[range]);
            }
        }
        file == good
    }
}

struct Walk {
    at: usize,
    fields: Vec<Field>,
    group: usize,
}

impl Walk {
    fn field(&mut self, what: &'static str, n_bytes: usize) {
        self.fields.push(Field { at: self.at, n_bytes, what, group: self.group });
        self.at += n_bytes;
    }
}
