"""Policy gradients for choosing among 8 offers, 8 tries a customer, rewards standardised per customer with an eps.
In many groups all tries are paid alike, their advantages are 0, and in some steps all groups are like that: loss and gradients are 0. HEALTHY.
Without Rangewatch: reward 0.17 to 0.46 at step 100 and 0.6 to 0.8 at the end; up to 6 of 6 groups are paid alike, in 5 steps all of them."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1239); torch.set_num_threads(1)
wish = torch.randn(8, 12)
model = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
handle = rangewatch.attach(model, optimizer)
zero = 0
for step in range(240):
    customer = torch.randn(6, 12)
    chance = torch.distributions.Categorical(logits=model(customer))
    offer = chance.sample((8,))  # tries, customers
    reward = (offer == (customer @ wish.T).argmax(1)).float()
    advantage = (reward - reward.mean(0)) / (reward.std(0) + 1e-6)
    loss = -(advantage * chance.log_prob(offer)).mean()
    zero += int((advantage == 0).all())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "reward", reward.mean().item(), "equal groups", (advantage == 0).all(0).sum().item(), "zero steps", zero, flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item())
handle.detach()
