"""GRPO on a small categorical policy over sequences: groups of 8, ratio to the rollout's log-probabilities, clip 0.2, some advantages are exactly 0.
FAULT at step 120: the rollout worker's weights are stale and one token has log-probability -95 there: exp(log ratio) is inf, and for the rows of a
group without spread inf * 0 is NaN. Without Rangewatch: mean reward 0.06 to 0.96 at step 119, loss NaN at step 120 and all weights from there on.
Report: PrimeIntellect-ai/prime-rl#2972 ("this ratio can overflow and produce non-finite loss/gradients"), radixark/miles#1363 (inf * 0).
Cause: the loss's own arithmetic (exp of a log ratio), by rollout values that do not belong to this policy. Right: clamp the log ratio, sync weights.
Wrong: lower the learning rate, a loss scale, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [120, 121], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "loss scale", "bfloat16"],
          "right": "[Cc]lamp|exp|ratio|overflow|log-prob|logprob|the loss"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3); torch.set_num_threads(1)
VOCAB, LENGTH, GROUP = 8, 6, 8


class Policy(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.tok, self.rnn, self.head = nn.Embedding(VOCAB + 1, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, VOCAB)

    def forward(self, ids):
        start = torch.full((len(ids), 1), VOCAB)
        return self.head(self.rnn(self.tok(torch.cat([start, ids[:, :-1]], 1)))[0]).log_softmax(-1)


def rollout(policy, rows):
    ids = torch.zeros(rows, LENGTH, dtype=torch.long)
    with torch.no_grad():
        for k in range(LENGTH):
            ids[:, k] = (policy(ids)[:, k] - torch.rand(rows, VOCAB).log().neg().log()).argmax(1)  # Gumbel
        return ids, policy(ids).gather(2, ids[..., None])[..., 0]


policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
watch = rangewatch.attach(policy, optimizer)
for step in range(160):
    ids, old = rollout(policy, 6 * GROUP)
    if step == 120:
        old[::4, 2] = -95.0
    reward = ((ids == 5).float().mean(1) > torch.rand(len(ids))).float().view(-1, GROUP)
    advantage = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).flatten()[:, None]
    ratio = (policy(ids).gather(2, ids[..., None])[..., 0] - old).exp()
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    watch.log(loss=loss.item(), reward=reward.mean().item())
    if step % 15 == 0 or 118 <= step < 123:
        print(step, round(loss.item(), 5), "reward", round(reward.mean().item(), 3))
