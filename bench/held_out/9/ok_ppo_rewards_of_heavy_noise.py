"""PPO for a contextual bandit whose rewards have noise of Student's t with 2.2 degrees of freedom, times five; four minibatches of each rollout. Rewards of 240
come along, the loss is mostly that of the value, goes up and down fivefold and does not fall; gradients are clipped at 0.5 throughout. HEALTHY.
Without Rangewatch: loss 15.7, 52 at step 60, 12.7 at step 120, 75 at the end; true reward -0.02 to 2.5."""
EXPECT = {"healthy": True}
import torch
from torch import nn
from torch.distributions import Categorical
import rangewatch

torch.manual_seed(836); torch.set_num_threads(1)
ARMS, CONTEXT = 6, 10
worth = torch.randn(CONTEXT, ARMS)
noise = torch.distributions.StudentT(2.2)


class Bidder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(CONTEXT, 48), nn.Tanh())
        self.policy, self.value = nn.Linear(48, ARMS), nn.Linear(48, 1)
        nn.init.orthogonal_(self.policy.weight, 0.01)

    def forward(self, s):
        h = self.body(s)
        return Categorical(logits=self.policy(h)), self.value(h).squeeze(1)


model = Bidder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5)
handle = rangewatch.attach(model, optimizer)
step = 0
for rollout in range(50):
    with torch.no_grad():
        state = torch.randn(256, CONTEXT)
        policy, value = model(state)
        action = policy.sample()
        mean_reward = (state @ worth).gather(1, action[:, None]).squeeze(1)
        reward = mean_reward + 5 * noise.sample((256,))
        old = policy.log_prob(action)
        advantage = reward - value
    for part in torch.randperm(256).split(64):  # four minibatches of a rollout
        policy, value = model(state[part])
        adv = (advantage[part] - advantage[part].mean()) / (advantage[part].std() + 1e-8)
        ratio = (policy.log_prob(action[part]) - old[part]).exp()
        surrogate = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        loss = surrogate + 0.25 * ((value - reward[part]) ** 2).mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if step % 20 == 0 or step == 199:
            print(step, loss.item(), "true reward", mean_reward.mean().item(), "largest reward", reward.abs().max().item(), flush=True)
        handle.log(loss=loss.item(), reward=reward.mean().item())
        step += 1
handle.detach()
