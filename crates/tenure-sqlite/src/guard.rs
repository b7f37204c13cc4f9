//! What keeps the caller's SQL inside its commit.
//!
//! These are callbacks on the writer's connection, idle until a closure of the caller's runs. Then they refuse
//! what would end the transaction, outlive it or bypass the store's rules, and stop what takes too long. They
//! protect from mistakes, not from intent: the closure's author could open the file as well.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use tenure::clock::SharedClock;

/// The savepoint around one commit with SQL of the caller's.
pub(crate) const SAVEPOINT: &str = "tenure_commit";
/// Steps of SQLite's machine between two looks at the clock: some microseconds.
const STEPS: i32 = 1_000;
/// The pragmas that change nothing, or nothing beyond the transaction.
const PRAGMAS: [&str; 12] = [
    "data_version",
    "defer_foreign_keys",
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "table_info",
    "table_list",
    "table_xinfo",
    "user_version",
    "application_id",
];

/// Watches over the closures that run on one connection.
pub(crate) struct Guard {
    state: Arc<State>,
    limit: Duration,
    /// Whether the triggers of this connection rest while no closure runs.
    resting: Cell<bool>,
}

struct State {
    clock: SharedClock,
    /// Whether a closure of the caller's runs.
    on: AtomicBool,
    watch: Mutex<Watch>,
}

#[derive(Default)]
struct Watch {
    deadline: Duration,
    refused: Option<String>,
}

impl State {
    fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    fn is_late(&self) -> bool {
        self.clock.uptime() >= self.watch().deadline
    }

    fn watch(&self) -> std::sync::MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn authorize(&self, context: AuthContext<'_>) -> Authorization {
        match refusal(&context.action) {
            Some(reason) if self.is_on() => {
                self.watch().refused = Some(reason);
                Authorization::Deny
            }
            _ => Authorization::Allow,
        }
    }
}

/// What the guard saw of a closure that has ended.
pub(crate) struct Seen {
    /// It took longer than allowed.
    pub(crate) late: Option<Duration>,
    /// The last thing it was not allowed to do.
    pub(crate) refused: Option<String>,
}

impl Guard {
    /// Installs the callbacks. A shared reference cannot remove them again, so neither can a closure.
    pub(crate) fn install(
        conn: &mut Connection,
        clock: SharedClock,
        limit: Duration,
    ) -> rusqlite::Result<Self> {
        let on = AtomicBool::new(false);
        let state = Arc::new(State { clock, on, watch: Mutex::default() });
        let own = Arc::clone(&state);
        conn.authorizer(Some(move |context: AuthContext<'_>| own.authorize(context)))?;
        let own = Arc::clone(&state);
        conn.progress_handler(STEPS, Some(move || own.is_on() && own.is_late()))?;
        // A closure that lost the transaction (`INSERT OR ROLLBACK`, say) and goes on regardless
        // would commit each statement by itself; this turns such a commit into a rollback.
        let own = Arc::clone(&state);
        conn.commit_hook(Some(move || own.is_on()))?;
        Ok(Self { state, limit, resting: Cell::new(false) })
    }

    /// Lets the triggers of this connection rest where `objects` has none but the store's own, which
    /// turn other programs away and cost each write a fifth of its time. Asked whenever somebody else
    /// has written to the file, and so perhaps made a trigger.
    pub(crate) fn look(&self, conn: &Connection) -> rusqlite::Result<()> {
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'trigger'
                     AND tbl_name = 'objects' COLLATE NOCASE AND name NOT GLOB 'tenure_guard_*'";
        let others: u32 = conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        let rest = others == 0;
        if rest != self.resting.replace(rest) {
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, !rest)?;
        }
        Ok(())
    }

    /// Runs `work`, which must not unwind, under guard and with all triggers at work.
    pub(crate) fn during<T>(
        &self,
        conn: &Connection,
        work: impl FnOnce() -> T,
    ) -> rusqlite::Result<(T, Seen)> {
        if self.resting.get() {
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, true)?;
        }
        let deadline = self.state.clock.uptime().saturating_add(self.limit);
        *self.state.watch() = Watch { deadline, refused: None };
        self.state.on.store(true, Ordering::Release);
        let done = work();
        self.state.on.store(false, Ordering::Release);
        let late = self.state.is_late().then_some(self.limit);
        if self.resting.get() {
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
        }
        Ok((done, Seen { late, refused: self.state.watch().refused.take() }))
    }

    /// How long closures have been running, for whoever takes turns.
    pub(crate) fn uptime(&self) -> Duration {
        self.state.clock.uptime()
    }
}

/// Whether a table or index belongs to the store.
fn is_ours(name: &str) -> bool {
    let prefix = name.get(..7).unwrap_or_default();
    name.eq_ignore_ascii_case("objects") || prefix.eq_ignore_ascii_case("tenure_")
}

/// Why the caller's SQL may not do this, if it may not.
fn refusal(action: &AuthAction<'_>) -> Option<String> {
    use AuthAction as A;
    let reason = match *action {
        A::Transaction { .. } => {
            "it may not begin, commit or roll back; return an error to undo the commit".into()
        }
        A::Savepoint { savepoint_name, .. } if savepoint_name.eq_ignore_ascii_case(SAVEPOINT) => {
            format!("the savepoint {savepoint_name} is the store's; choose another name")
        }
        A::Insert { table_name } | A::Update { table_name, .. } | A::Delete { table_name }
            if is_ours(table_name) =>
        {
            format!("it may not write to {table_name}; put the write into the commit itself")
        }
        A::CreateTable { table_name }
        | A::CreateVtable { table_name, .. }
        | A::CreateView { view_name: table_name }
        | A::CreateIndex { table_name, .. }
        | A::CreateTrigger { table_name, .. }
        | A::AlterTable { table_name, .. }
        | A::DropTable { table_name }
        | A::DropVtable { table_name, .. }
        | A::DropView { view_name: table_name }
        | A::DropIndex { table_name, .. }
        | A::DropTrigger { table_name, .. }
            if is_ours(table_name) =>
        {
            format!("it may not change {table_name}, which is the store's")
        }
        // It would stay on the store's connection, and could stand before a table of the same name.
        A::CreateTempTable { .. }
        | A::CreateTempView { .. }
        | A::CreateTempIndex { .. }
        | A::CreateTempTrigger { .. } => {
            "it may not create anything temporary; use a table or a common table expression".into()
        }
        A::Attach { .. } | A::Detach { .. } => "it may not attach or detach databases".into(),
        A::Pragma { pragma_name, .. }
            if !PRAGMAS.iter().any(|allowed| allowed.eq_ignore_ascii_case(pragma_name)) =>
        {
            format!("it may not use PRAGMA {pragma_name}; the connection is the store's")
        }
        _ => return None,
    };
    Some(reason)
}
