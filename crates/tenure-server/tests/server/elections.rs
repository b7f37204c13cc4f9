//! Elections over gRPC.

use anyhow::{Context, Result, bail, ensure};
use tenure_proto::v1;
use tonic::Code;

use crate::serving::{
    Serving, acquire, asking, end_of, in_line, next, on_each, release, terms, told, waiting,
};

const SCOPE: &str = "billing/leader";

#[tokio::test]
async fn the_leader_is_known_with_what_it_says_and_every_change_is_seen() -> Result<()> {
    on_each(|store| async move {
        let (a, b) = (Serving::start(&store).await?, Serving::start(&store).await?);
        let leases = a.leases().await?;
        let mut elections = b.elections().await?;
        let request = v1::LeaderRequest { scope: SCOPE.into() };
        ensure!(elections.leader(request.clone()).await?.into_inner().leader.is_none());
        let observe = v1::ObserveRequest { scope: SCOPE.into() };
        let mut leaders = elections.observe(observe).await?.into_inner();
        ensure!(next(&mut leaders).await?.context("who leads")?.leader.is_none());

        let mut campaign = terms("a#1");
        campaign.metadata.insert("address".into(), "10.0.0.1:80".into());
        let first = acquire(&leases, SCOPE, campaign).await?;
        let leader = elections.leader(request).await?.into_inner().leader.context("a leader")?;
        ensure!(leader.holder == "a#1" && leader.metadata["address"] == "10.0.0.1:80");
        let successor = asking(&leases, SCOPE, waiting("b#1"));
        in_line(&leases, SCOPE, 1).await?;
        release(&leases, &first).await?;
        let second = end_of(successor).await??;

        let mut seen = Vec::new();
        while seen.last() != Some(&second.token) {
            match next(&mut leaders).await?.context("it ended")?.leader {
                Some(leader) if leader.holder == "a#1" => seen.push(first.token),
                Some(leader) if leader.holder == "b#1" => seen.push(leader.token),
                None => {}
                other => bail!("{other:?}"),
            }
        }
        seen.dedup();
        ensure!(seen == [first.token, second.token], "{seen:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_is_no_scope_is_named() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let mut elections = server.elections().await?;
        let bad = elections.leader(v1::LeaderRequest { scope: "?".into() }).await;
        let error = told(bad, Code::InvalidArgument, "invalid")?;
        ensure!(error.message.contains('?'), "{error:?}");
        Ok(())
    })
    .await
}
