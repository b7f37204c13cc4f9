//! The network between one process and the store: slow, lossy, at times cut.
//!
//! A request that has left travels on its own, whether or not its sender still waits for the reply:
//! it may be lost, arrive late or twice, and the same goes for the reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use tenure::backend::Backend;
use tenure::store::{
    Capabilities, Capability, Commit, Committed, Page, Query, Touch, Touched, Watch, WatchRequest,
};
use tenure::{Error, Key, Object, Result};
use tokio::sync::oneshot;

use crate::dice::Dice;
use crate::observer::RECOVERY_MS;
use crate::plan::{Faults, Plan};
use crate::process::Process;
use crate::server::{Reply, Request, Server};

/// Whoever gives something up looks for it this long: what arrives later finds nobody.
const STRAY: Duration = Duration::from_secs(3);

/// What is the matter with the store, for everybody.
#[derive(Debug, Default)]
pub struct Weather {
    /// Outages in which requests are refused at once.
    refuses: AtomicU64,
    /// Outages in which requests vanish.
    hangs: AtomicU64,
    /// Faults no longer happen.
    fair: AtomicBool,
    /// Calls so far.
    pub calls: AtomicU64,
}

impl Weather {
    /// The store cannot be reached, or can be again: it refuses, or it hangs.
    pub fn outage(&self, hangs: bool, begins: bool) {
        let count = if hangs { &self.hangs } else { &self.refuses };
        match begins {
            true => count.fetch_add(1, Ordering::Relaxed),
            false => count.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// How many outages are going on.
    pub fn outages(&self) -> u64 {
        self.refuses.load(Ordering::Relaxed) + self.hangs.load(Ordering::Relaxed)
    }

    /// From now on nothing goes wrong.
    pub fn clear_up(&self) {
        self.fair.store(true, Ordering::Relaxed);
    }

    fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) > 0
    }

    fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Relaxed) > 0
    }
}

/// What becomes of one call.
#[derive(Clone, Copy, Debug)]
struct Fate {
    request: Duration,
    reply: Duration,
    lose_request: bool,
    lose_reply: bool,
    /// A loss shows as an error at once; else as silence.
    reset: bool,
    again: Option<Duration>,
}

/// One process's way to the store.
pub struct Link {
    server: Arc<Server>,
    process: Arc<Process>,
    weather: Arc<Weather>,
    faults: Faults,
    dice: Dice,
    capabilities: Capabilities,
}

impl Link {
    /// The way of this process to the store.
    pub fn new(
        server: &Arc<Server>,
        process: &Arc<Process>,
        weather: &Arc<Weather>,
        plan: &Plan,
        dice: Dice,
    ) -> Self {
        let mut capabilities = server.store().capabilities().clone();
        if plan.single {
            capabilities.multi_object_commits = false;
            capabilities.history = None;
        }
        Self {
            server: Arc::clone(server),
            process: Arc::clone(process),
            weather: Arc::clone(weather),
            faults: plan.faults,
            dice,
            capabilities,
        }
    }

    fn draw(&self, writes: bool) -> Fate {
        let dice = &self.dice;
        let mut fate = Fate {
            request: dice.millis(1, 20),
            reply: dice.millis(1, 20),
            lose_request: false,
            lose_reply: false,
            reset: dice.chance(500),
            again: None,
        };
        // Drawn in any case, so that fair weather changes nothing else.
        let (roll, late) = (dice.below(1000), dice.spread(50, 15_000));
        if self.weather.fair.load(Ordering::Relaxed) {
            return fate;
        }
        let Faults { lost, late: slow, twice } = self.faults;
        if roll < lost {
            match roll % 2 {
                0 => fate.lose_request = true,
                _ => fate.lose_reply = true,
            }
        } else if roll < lost + slow {
            match roll % 2 {
                0 => fate.request = late,
                _ => fate.reply = late,
            }
        } else if roll < lost + slow + twice && writes {
            fate.again = Some(late);
        } else {
            return fate;
        }
        let now = self.server.observer.clock.now_ms();
        let late = i64::try_from(late.as_millis()).unwrap_or(0);
        self.process.struck(now, now + late + RECOVERY_MS);
        fate
    }

    async fn call(&self, what: &'static str, writes: bool, request: Request) -> Result<Reply> {
        if self.process.is_dead() {
            return Err(Error::unavailable("memory", "the process is dead"));
        }
        self.weather.calls.fetch_add(1, Ordering::Relaxed);
        self.server.observer.asked(&self.process, what);
        let (answer, answered) = oneshot::channel();
        let trip = Trip {
            server: Arc::clone(&self.server),
            process: Arc::clone(&self.process),
            weather: Arc::clone(&self.weather),
            fate: self.draw(writes),
            what,
            writes,
        };
        tokio::spawn(trip.travel(request, answer));
        match answered.await {
            Ok(reply) => reply,
            // Nobody will answer; only a timeout helps.
            Err(_) => std::future::pending().await,
        }
    }
}

/// One request on its way, and its reply on the way back.
struct Trip {
    server: Arc<Server>,
    process: Arc<Process>,
    weather: Arc<Weather>,
    fate: Fate,
    what: &'static str,
    writes: bool,
}

impl Trip {
    async fn travel(self, request: Request, answer: oneshot::Sender<Result<Reply>>) {
        let fate = self.fate;
        tokio::time::sleep(fate.request).await;
        if self.weather.refuses() {
            let _ = answer.send(Err(Error::unavailable("memory", "the store is down")));
            return;
        }
        let gone = self.process.is_partitioned() || self.weather.hangs();
        if gone || fate.lose_request {
            self.note("the request is lost");
            return self.lost(answer);
        }
        if let Some(later) = fate.again {
            let (server, process) = (Arc::clone(&self.server), Arc::clone(&self.process));
            let (request, what) = (request.clone(), self.what);
            tokio::spawn(async move {
                tokio::time::sleep(later).await;
                server.observer.note(&process.name, &format!("{what} arrives a second time"));
                if server.apply(&process, request.clone()).is_ok() {
                    server.observer.strayed(&request);
                }
            });
        }
        let late = (fate.request > STRAY).then(|| request.clone());
        let reply = self.server.apply(&self.process, request);
        if let Some(late) = late.filter(|_| reply.is_ok()) {
            self.server.observer.strayed(&late);
        }
        if fate.lose_reply {
            self.note("the reply is lost");
            return self.lost(answer);
        }
        if fate.reply > Duration::from_millis(30) {
            self.note(&format!("the reply takes {:?}", fate.reply));
        }
        tokio::time::sleep(fate.reply).await;
        if self.process.is_partitioned() {
            self.note("the reply is lost");
            return self.lost(answer);
        }
        let _ = answer.send(reply);
    }

    fn lost(&self, answer: oneshot::Sender<Result<Reply>>) {
        if !self.fate.reset {
            return;
        }
        let reason = "connection reset";
        let error = match self.writes {
            true => Error::unknown("memory", reason),
            false => Error::unavailable("memory", reason),
        };
        let _ = answer.send(Err(error));
    }

    fn note(&self, what: &str) {
        self.server.observer.note(&self.process.name, &format!("{}: {what}", self.what));
    }
}

/// What a reply should never be.
fn mixed_up() -> Error {
    Error::corrupt("memory", "the reply belongs to another request")
}

#[async_trait]
impl Backend for Link {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        match self.call("get", false, Request::Get(key.clone())).await? {
            Reply::Got(object) => Ok(object),
            _ => Err(mixed_up()),
        }
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        match self.call("list", false, Request::List(query.clone())).await? {
            Reply::Listed(page) => Ok(page),
            _ => Err(mixed_up()),
        }
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        if !self.capabilities.multi_object_commits && commit.checks.len() + commit.writes.len() > 1
        {
            let capability = Capability::MultiObjectCommits;
            return Err(Error::Unsupported { capability, backend: "memory" });
        }
        match self.call("commit", true, Request::Commit(commit)).await? {
            Reply::Committed(committed) => Ok(committed),
            _ => Err(mixed_up()),
        }
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        match self.call("touch", true, Request::Touch(touches)).await? {
            Reply::Touched(touched) => Ok(touched),
            _ => Err(mixed_up()),
        }
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        // Answered like any other call; a list of nothing stands for the handshake.
        let hello = Query::new("nothing").limit(1);
        self.call("watch", false, Request::List(hello)).await?;
        let start = self.server.revision();
        let news = self.server.watch(&self.process.owner.to_string(), request);
        let (latency, process) = (self.dice.millis(1, 20), Arc::clone(&self.process));
        let clock = self.server.observer.clock;
        let delivered =
            futures::stream::unfold((news, process), move |(mut news, process)| async move {
                let (sent, item) = news.recv().await?;
                clock.sleep_until(sent + latency).await;
                while process.is_partitioned() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Some((item, (news, process)))
            });
        Ok(Watch::new(start, delivered.boxed()))
    }
}
