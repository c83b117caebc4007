"""GRPO on a small policy whose reward is 0 or 1: at first most groups have no spread of rewards, so that many steps have a loss and gradients of exactly 0;
the loss stays about 0 all along, for advantages sum to 0. HEALTHY. Without Rangewatch: reward 0 to 1 at step 140; all groups are flat at first and at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(131); torch.set_num_threads(1)
VOCAB, LENGTH, GROUP = 8, 5, 8


class Policy(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.tok, self.rnn, self.head = nn.Embedding(VOCAB + 1, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, VOCAB)

    def forward(self, ids):
        start = torch.full((len(ids), 1), VOCAB)
        return self.head(self.rnn(self.tok(torch.cat([start, ids[:, :-1]], 1)))[0]).log_softmax(-1)


policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.0)
watch = rangewatch.attach(policy, optimizer)
for step in range(200):
    ids = torch.zeros(4 * GROUP, LENGTH, dtype=torch.long)
    with torch.no_grad():
        for k in range(LENGTH):
            ids[:, k] = (policy(ids)[:, k] - torch.rand(len(ids), VOCAB).log().neg().log()).argmax(1)
        old = policy(ids).gather(2, ids[..., None])[..., 0]
    reward = ((ids == 5).sum(1) >= 4).float().view(-1, GROUP)
    spread = reward.std(1, keepdim=True)
    advantage = ((reward - reward.mean(1, keepdim=True)) / (spread + 1e-4)).flatten()[:, None]
    log_ratio = (policy(ids).gather(2, ids[..., None])[..., 0] - old).clamp(-20, 20)
    ratio = log_ratio.exp()
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    watch.log(loss=loss.item(), reward=reward.mean().item())
    if step % 20 == 0 or step == 199:
        print(step, round(loss.item(), 6), "reward", round(reward.mean().item(), 3), "flat groups", int((spread == 0).sum()))
