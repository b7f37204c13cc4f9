//! What can be set, by a builder or in the URL.

use std::path::PathBuf;
use std::time::Duration;

use tenure::clock::{SharedClock, SystemClock};
use tenure::{Error, Result};
use tenure_net::address;

/// Which cluster a [`crate::KubernetesStore`] uses, and how.
///
/// ```
/// use tenure_kubernetes::Options;
///
/// let options = Options::from_url("kubernetes://jobs?context=staging&prefix=app-")?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) namespace: Option<String>,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
    pub(crate) service_account: Option<PathBuf>,
    pub(crate) prefix: String,
    pub(crate) idle: Option<Duration>,
    pub(crate) request_timeout: Duration,
    pub(crate) watch_time: Duration,
    pub(crate) clock: SharedClock,
}

impl Options {
    /// The defaults: the cluster this program runs in, else the kubeconfig's current context; the
    /// namespace that goes with it; all of its Leases.
    pub fn new() -> Self {
        Self {
            namespace: None,
            kubeconfig: None,
            context: None,
            service_account: None,
            prefix: String::new(),
            idle: None,
            request_timeout: Duration::from_secs(8),
            watch_time: Duration::from_secs(60),
            clock: SystemClock::shared(),
        }
    }

    /// `kubernetes://NAMESPACE?kubeconfig=…&context=…&serviceaccount=…&prefix=…&idle=SECONDS`, all of
    /// it optional.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything else; unknown settings are errors.
    pub fn from_url(url: &str) -> Result<Self> {
        let address = format!("store URL {url:?}");
        let invalid = |reason: String| Error::invalid(address.clone(), reason);
        let rest = url.strip_prefix("kubernetes:").ok_or_else(|| {
            invalid("it starts with kubernetes://, for instance kubernetes://jobs".into())
        })?;
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (namespace, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let namespace = namespace.trim_end_matches('/');
        let mut options = Self::new();
        if !namespace.is_empty() {
            options = options.namespace(namespace);
        }
        for setting in address::settings(&address, settings) {
            let (key, value) = setting?;
            if value.is_empty() {
                return Err(invalid(format!("{key} has no value")));
            }
            options = match key {
                "kubeconfig" => options.kubeconfig(value),
                "context" => options.context(value),
                "serviceaccount" => options.service_account(value),
                "prefix" => options.prefix(value),
                "idle" => match value.parse() {
                    Ok(seconds) => options.delete_idle_after(Duration::from_secs(seconds)),
                    Err(_) => return Err(invalid("idle is a number of seconds".into())),
                },
                other => {
                    return Err(invalid(format!(
                        "there is no setting {other:?}; there are kubeconfig, context, serviceaccount, prefix \
                         and idle"
                    )));
                }
            };
        }
        if options.service_account.is_some()
            && (options.kubeconfig.is_some() || options.context.is_some())
        {
            return Err(invalid("serviceaccount excludes kubeconfig and context".into()));
        }
        Ok(options)
    }

    /// The cluster's namespace whose Leases are used.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// This kubeconfig instead of the usual places.
    #[must_use]
    pub fn kubeconfig(mut self, path: impl Into<PathBuf>) -> Self {
        self.kubeconfig = Some(path.into());
        self
    }

    /// This context of the kubeconfig instead of its current one.
    #[must_use]
    pub fn context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// The service account in this folder, as pods have it in
    /// `/var/run/secrets/kubernetes.io/serviceaccount`. The API server is where
    /// `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT` say. A kubeconfig comes first.
    #[must_use]
    pub fn service_account(mut self, folder: impl Into<PathBuf>) -> Self {
        self.service_account = Some(folder.into());
        self
    }

    /// Uses only Leases whose names begin with this, and names its own so.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Deletes Leases of ours that nobody has held for this long; zero deletes them with the release.
    /// Needs the right to delete. Without it they stay, idle, and go on counting their transitions:
    /// right for scopes that are used again, not for scopes that are never used again.
    #[must_use]
    pub fn delete_idle_after(mut self, idle: Duration) -> Self {
        self.idle = Some(idle);
        self
    }

    /// How long the API server may take to answer (8 seconds).
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout.max(Duration::from_millis(10));
        self
    }

    /// After how long the API server is to end a watch, which then goes on with another (60 seconds, in
    /// whole seconds). One that has told nothing for this long and the time for an answer counts as dead.
    #[must_use]
    pub fn watch_time(mut self, time: Duration) -> Self {
        self.watch_time = time.max(Duration::from_secs(1));
        self
    }

    /// Takes time from elsewhere, for tests.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("namespace", &self.namespace)
            .field("kubeconfig", &self.kubeconfig)
            .field("context", &self.context)
            .field("service_account", &self.service_account)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_which_leases() {
        let url = "kubernetes://jobs?kubeconfig=/a%20b/c&context=x&prefix=app-&idle=60";
        let options = Options::from_url(url).unwrap();
        assert_eq!(options.namespace.as_deref(), Some("jobs"));
        assert_eq!(options.kubeconfig.as_deref(), Some(std::path::Path::new("/a b/c")));
        assert_eq!((options.context.as_deref(), &*options.prefix), (Some("x"), "app-"));
        assert_eq!(options.idle, Some(Duration::from_secs(60)));
        for bare in ["kubernetes://", "kubernetes:"] {
            assert_eq!(Options::from_url(bare).unwrap().namespace, None);
        }
    }

    #[test]
    fn unknown_settings_are_errors() {
        for bad in [
            "kubernetes://a?ctx=b",
            "kubernetes://a?idle=soon",
            "kubernetes://a?context=",
            "etcd://a",
            "kubernetes://a?context=%zz",
            "kubernetes://a?serviceaccount=/a&context=b",
            "kubernetes://a?serviceaccount=/a&kubeconfig=/b",
        ] {
            assert!(Options::from_url(bad).is_err(), "{bad}");
        }
    }
}
