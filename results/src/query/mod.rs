//! The store as tables that SQL can ask: an in-memory SQLite, filled anew for each
//! question and closed to every statement that does more than read.

mod load;
mod print;
mod tables;

pub use print::Format;
pub use tables::{Column, TABLES, Table, describe};

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::ValueRef;
use serde_json::Value;

use crate::store::Store;

/// The rows of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows: text, numbers and nulls.
    pub rows: Vec<Vec<Value>>,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The statement is none that reads.
    #[error("expected one statement that reads, as SELECT ... FROM runs; {0}")]
    Statement(String),
    /// SQLite refused the statement.
    #[error("{problem}; the tables are {tables} (see `results tables` for their columns)")]
    Sql {
        /// What SQLite said.
        problem: String,
        /// The names of the tables.
        tables: String,
    },
}

fn sql(error: rusqlite::Error) -> QueryError {
    let tables: Vec<&str> = TABLES.iter().map(|table| table.name).collect();
    QueryError::Sql {
        problem: error.to_string(),
        tables: tables.join(", "),
    }
}

/// Answers one statement.
///
/// # Errors
/// More than one statement, one that writes, attaches or changes a setting, or one
/// that SQLite does not take.
pub fn query(store: &Store, statement: &str) -> Result<Answer, QueryError> {
    let mut connection = Connection::open_in_memory().map_err(sql)?;
    load::fill(&connection, store).map_err(sql)?;
    connection.authorizer(Some(reads_only)).map_err(sql)?;
    let mut prepared = connection.prepare(statement).map_err(refused)?;
    let columns: Vec<String> = prepared.column_names().map(str::to_owned).collect();
    if columns.is_empty() {
        return Err(QueryError::Statement(
            "this one does more than read, or nothing".to_owned(),
        ));
    }
    let mut rows = Vec::new();
    let mut found = prepared.query([]).map_err(sql)?;
    while let Some(row) = found.next().map_err(sql)? {
        let values = (0..columns.len()).map(|at| row.get_ref(at).map(json));
        rows.push(values.collect::<Result<_, _>>().map_err(sql)?);
    }
    Ok(Answer { columns, rows })
}

/// Why SQLite did not take a statement.
fn refused(error: rusqlite::Error) -> QueryError {
    let denied = rusqlite::ErrorCode::AuthorizationForStatementDenied;
    if error.sqlite_error_code() == Some(denied) {
        QueryError::Statement(
            "this one does more than read, and records are not changed here".to_owned(),
        )
    } else if matches!(error, rusqlite::Error::MultipleStatement) {
        QueryError::Statement("found more than one".to_owned())
    } else {
        sql(error)
    }
}

/// Reading, and the functions of a question; nothing that writes or opens a file.
fn reads_only(context: AuthContext<'_>) -> Authorization {
    let reads = matches!(
        context.action,
        AuthAction::Select
            | AuthAction::Read { .. }
            | AuthAction::Function { .. }
            | AuthAction::Recursive
    );
    if reads {
        Authorization::Allow
    } else {
        Authorization::Deny
    }
}

fn json(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        // SQLite has infinities, JSON has not.
        ValueRef::Real(number) if number.is_finite() => number.into(),
        ValueRef::Real(number) => number.to_string().into(),
        ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into(),
    }
}
