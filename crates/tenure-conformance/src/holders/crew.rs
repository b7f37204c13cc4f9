//! The holders as processes: started, told, frozen, killed, and listened to all along.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock::{Clock, SystemClock};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin};
use tokio::sync::watch;
use tokio::time::timeout;

use super::holder::{Hold, STOP, Said, nanos};
use super::record::Record;
use crate::context::PATIENCE;
use crate::process::Worker;
use crate::worker::{Ask, Request};
use crate::{Failure, WorkerCommand};

/// Whatever is bound to happen is waited for this long: no judgement of speed, only of an end.
pub(super) const BOUND: Duration = PATIENCE.saturating_mul(2);

/// All holders of one ordeal. Those that still run are killed when it is dropped.
pub(super) struct Crew<'a> {
    command: &'a WorkerCommand,
    hold: Hold,
    /// Whoever freezes may have a lock of the store, about which no lease can do anything.
    locks: bool,
    processes: BTreeMap<String, Process>,
    record: watch::Sender<Record>,
    started: u32,
}

struct Process {
    child: Child,
    stdin: ChildStdin,
}

impl<'a> Crew<'a> {
    pub(super) fn new(command: &'a WorkerCommand, hold: Hold, locks: bool) -> Self {
        let record = watch::Sender::new(Record::default());
        Self { command, hold, locks, processes: BTreeMap::new(), record, started: 0 }
    }

    pub(super) fn ttl(&self) -> Duration {
        Duration::from_millis(self.hold.ttl_ms)
    }

    pub(super) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// A copy of what was told so far.
    pub(super) fn record(&self) -> Record {
        self.record.borrow().clone()
    }

    /// Starts one more holder, under a name of its own.
    pub(super) async fn start_one(&mut self) -> Result<(), Failure> {
        self.started += 1;
        let name = format!("p{}", self.started);
        let (child, mut stdin, mut lines) = Worker::start(self.command)?.into_parts();
        let hold = Hold { name: name.clone(), ..self.hold.clone() };
        let ask = serde_json::to_string(&Ask { at_ms: 0, request: Request::Hold(hold) })?;
        stdin.write_all(format!("{ask}\n").as_bytes()).await?;
        self.record.send_modify(|record| {
            record.told.entry(name.clone()).or_default();
        });
        self.processes.insert(name.clone(), Process { child, stdin });
        let record = self.record.clone();
        tokio::spawn(async move {
            // To the end of its output: what it said before it died counts.
            while let Ok(Some(line)) = lines.next_line().await {
                record.send_modify(|record| match serde_json::from_str::<Said>(&line) {
                    Ok(said) => record.hear(&name, said),
                    Err(_) => record.complain(&name, &format!("it said {line:?}")),
                });
            }
            record.send_modify(|record| record.gone(&name));
        });
        Ok(())
    }

    /// Waits for something to be true of what was told. A complaint ends every wait.
    pub(super) async fn until(
        &self,
        what: &str,
        mut is_so: impl FnMut(&Record) -> bool,
    ) -> Result<(), Failure> {
        if !self.within(BOUND, &mut is_so).await? {
            let record = self.record();
            let tenures: Vec<_> = record
                .told
                .iter()
                .filter_map(|(n, told)| Some((n, told.tenure.as_ref()?)))
                .collect();
            let counts = record.counts;
            let text = format!("not within {BOUND:?}: {what}; {counts} counts, {tenures:?}");
            return Err(Failure::new(text));
        }
        Ok(())
    }

    /// Waits for somebody else to go on while a process is frozen. Only on a store of which that one
    /// may have a lock is it no failure if nobody does for three lives.
    pub(super) async fn overtakes(
        &self,
        what: &str,
        is_so: impl FnMut(&Record) -> bool,
    ) -> Result<bool, Failure> {
        match self.locks {
            true => self.within(self.ttl() * 3, is_so).await,
            false => self.until(what, is_so).await.map(|()| true),
        }
    }

    /// Whether it became true in time.
    async fn within(
        &self,
        patience: Duration,
        mut is_so: impl FnMut(&Record) -> bool,
    ) -> Result<bool, Failure> {
        let mut changes = self.record.subscribe();
        let wanted = changes.wait_for(|record| record.complaint.is_some() || is_so(record));
        match timeout(patience, wanted).await {
            Err(_) => Ok(false),
            Ok(Err(_)) => Err(Failure::new("nobody listens to the holders any more")),
            Ok(Ok(record)) => match &record.complaint {
                Some(complaint) => Err(Failure::new(complaint.clone())),
                None => Ok(true),
            },
        }
    }

    /// Those who hold nothing, as far as they told.
    pub(super) fn waiting(&self) -> Vec<String> {
        let record = self.record.borrow();
        let waits = |name: &&String| record.told.get(*name).is_some_and(|t| t.tenure.is_none());
        self.processes.keys().filter(waits).cloned().collect()
    }

    fn process(&mut self, name: &str) -> Result<&mut Process, Failure> {
        self.processes.get_mut(name).ok_or_else(|| Failure::new(format!("no process {name}")))
    }

    pub(super) fn freeze(&mut self, name: &str) -> Result<(), Failure> {
        self.signal(name, Signal::STOP)
    }

    pub(super) fn thaw(&mut self, name: &str) -> Result<(), Failure> {
        self.signal(name, Signal::CONT)
    }

    fn signal(&mut self, name: &str, signal: Signal) -> Result<(), Failure> {
        let id = self.process(name)?.child.id().and_then(|id| i32::try_from(id).ok());
        let pid = id.and_then(Pid::from_raw).ok_or_else(|| format!("{name} has ended"))?;
        kill_process(pid, signal).map_err(|error| Failure::new(format!("{signal:?}: {error}")))
    }

    pub(super) async fn tell(&mut self, name: &str, word: &str) -> Result<(), Failure> {
        let line = format!("{word}\n");
        Ok(self.process(name)?.stdin.write_all(line.as_bytes()).await?)
    }

    /// `SIGKILL`. Returns when the process is gone and all it said was heard.
    pub(super) async fn kill(&mut self, name: &str) -> Result<(), Failure> {
        let mut process =
            self.processes.remove(name).ok_or_else(|| format!("no process {name}"))?;
        self.record.send_modify(|record| record.dismiss(name));
        // Before the kill: it may have believed to hold up to here, and perhaps a little longer.
        let at = nanos(SystemClock.uptime());
        process.child.start_kill()?;
        process.child.wait().await?;
        self.all_said(name).await?;
        self.record.send_modify(|record| record.killed(name, at));
        Ok(())
    }

    /// `SIGTERM`. Returns when the process has ended, as it should, and all it said was heard.
    pub(super) async fn terminate(&mut self, name: &str) -> Result<(), Failure> {
        self.record.send_modify(|record| record.dismiss(name));
        self.signal(name, Signal::TERM)?;
        let process = self.processes.remove(name);
        let mut process = process.ok_or_else(|| format!("no process {name}"))?;
        self.ended(name, &mut process).await
    }

    /// Tells all to stop and waits until they have.
    pub(super) async fn stop_all(&mut self) -> Result<(), Failure> {
        let mut processes = std::mem::take(&mut self.processes);
        for (name, process) in &mut processes {
            self.record.send_modify(|record| record.dismiss(name));
            process.stdin.write_all(format!("{STOP}\n").as_bytes()).await?;
        }
        for (name, mut process) in processes {
            self.ended(&name, &mut process).await?;
        }
        Ok(())
    }

    async fn ended(&self, name: &str, process: &mut Process) -> Result<(), Failure> {
        let ended = timeout(BOUND, process.child.wait()).await;
        let status = ended.map_err(|_| format!("{name} does not end"))??;
        ensure!(status.success(), "{name} ended with {status}");
        self.all_said(name).await
    }

    async fn all_said(&self, name: &str) -> Result<(), Failure> {
        let gone = |record: &Record| record.told.get(name).is_some_and(|told| told.gone);
        self.until("its output ends", gone).await
    }
}
